"""Results are kept, resumed and refused as promised; windows stay in documents; the late table follows its rule."""

from __future__ import annotations

import gc
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import depthbench as db
from depthbench import probes
from depthbench.probes import measure as measuring
from depthbench.probes.late import first_late_layer
from depthbench.probes.results import ProbeResult
from depthbench.probes.windows import Windows

from .common import QUIET, SHAPE, random_model, tokens

IDS = tokens(5, 6)


def result(rows: np.ndarray, probe: str = "toy") -> ProbeResult:
    axes = ("a", "b")[: rows.ndim - 1]
    labels = {axis: list(range(n)) for axis, n in zip(axes, rows.shape[1:], strict=True)}
    return ProbeResult(probe, {"x": rows}, {"x": axes}, {"x": "unit"}, labels, {"design": "pre_ln"})


def test_a_saved_result_is_the_same(tmp_path: Path) -> None:
    made = probes.logit_lens(random_model("hc"), IDS, **QUIET)
    path = made.save(tmp_path / "deep" / "lens.v1")
    assert path.name == "lens.v1.json" and not list(path.parent.glob("*.part"))
    for given in (path, path.with_suffix(".npz"), path.with_suffix("")):
        back = probes.load(given)
        assert back.probe == "logit_lens" and back.units == made.units and back.axes == made.axes
        assert back.provenance["weights_sha256"] == made.provenance["weights_sha256"]
        for name, rows in made.by_document.items():
            assert np.array_equal(back.by_document[name], rows)
        assert back.to_frame().equals(made.to_frame())
    frame = made.to_frame()
    assert list(frame.columns[:2]) == ["lens", "after_layers"] and len(frame) == 2 * (SHAPE.n_layers + 1)
    row = frame[(frame["lens"] == "next") & (frame["after_layers"] == 1)]
    assert float(row["loss"].iloc[0]) == made["loss"][1, 1]
    with pytest.raises(KeyError, match="no array 'nll'; it has kl_final"):
        made["nll"]


def test_frames_leave_out_what_has_no_meaning() -> None:
    frame = probes.causal_scores(random_model("pre_ln"), IDS, **QUIET).to_frame()
    assert len(frame) == 3 and (frame["skipped_layer"] < frame["layer"]).all()
    update = probes.causal_scores(random_model("pre_ln"), IDS, **QUIET).to_frame("update")
    assert list(update.columns) == ["layer", "update"]


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = result(np.ones((2, 3))).save(tmp_path / "x")
    with pytest.raises(probes.ProbeFileError, match="missing"):
        probes.load(tmp_path / "y")
    arrays = path.with_suffix(".npz")
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(probes.ProbeFileError):
        probes.load(path)
    with open(arrays, "wb") as file:
        np.savez(file, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(probes.ProbeFileError):
        probes.load(path)
    arrays.write_bytes(whole)
    path.write_text(json.dumps({"format": "other"}))
    with pytest.raises(probes.ProbeFileError, match="format 'other'"):
        probes.load(path)


def test_bands_come_from_documents() -> None:
    rows = np.array([[0.0, 1.0], [0.0, 3.0]])
    low, high = result(rows).bootstrap("x", n=4000)
    assert (low == [0, 1]).all() and (high == [0, 3]).all()
    many = np.random.default_rng(0).normal(size=(400, 1))
    low, high = result(many).bootstrap("x", n=2000)
    assert float(high[0] - low[0]) == pytest.approx(2 * 1.96 * many.std() / 20, rel=0.1)
    with pytest.raises(ValueError, match="one document"):
        result(rows[:1]).bootstrap("x")


def test_windows_of_one_document_count_once() -> None:
    model = random_model("pre_ln")
    apart = probes.layer_pruning(model, IDS, **QUIET).by_document["loss"]
    joined = probes.layer_pruning(model, Windows(IDS.numpy(), np.array([7, 7, 2, 2, 2])), **QUIET)
    assert joined.n_documents == 2
    assert joined.by_document["loss"] == pytest.approx([apart[2:].mean(), apart[:2].mean()])


def test_windows_stay_in_their_document() -> None:
    stream = np.repeat(np.arange(10), [3, 9, 4, 12, 5, 6, 2, 8, 7, 5])
    starts = np.concatenate([[0], np.flatnonzero(np.diff(stream)) + 1, [len(stream)]])
    windows = probes.document_windows(stream, starts, n_windows=7, seq_len=5, seed=1, source={"name": "toy"})
    assert windows.ids.shape == (7, 5) and (windows.ids == windows.documents[:, None]).all()
    assert set(windows.documents) <= {1, 3, 4, 5, 7, 8, 9} and len(set(windows.documents)) == 7
    with pytest.raises(ValueError, match="3 documents have 8 tokens or more, 4 windows"):
        probes.document_windows(stream, starts, n_windows=4, seq_len=8)
    for wrong, words in ((np.zeros(5, int), r"an array \(n, T\)"), (np.zeros((2, 3)), "must be integers")):
        with pytest.raises(ValueError, match=words):
            probes.layer_pruning(random_model("pre_ln"), wrong, **QUIET)
    with pytest.raises(ValueError, match="0 to 30"):
        probes.layer_pruning(random_model("pre_ln"), IDS + 10, **QUIET)
    with pytest.raises(ValueError, match="predict nothing"):
        probes.layer_pruning(random_model("pre_ln"), IDS[:, :1], **QUIET)


def counting(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[int]:
    """Counts the batches that are run; stops as Ctrl-C would before one of them."""
    ran: list[int] = []
    make = measuring.walk

    def counted(model: Any) -> Any:
        if stop_at is not None and len(ran) == stop_at:
            raise KeyboardInterrupt
        ran.append(1)
        return make(model)

    monkeypatch.setattr(measuring, "walk", counted)
    return ran


def test_a_stopped_probe_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("mhc")
    running: dict[str, Any] = {"batch_size": 2, "cache": tmp_path, **QUIET}
    straight = probes.causal_scores(model, IDS, batch_size=2, **QUIET)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        counting(patch, stop_at=2)
        probes.causal_scores(model, IDS, **running)
    with monkeypatch.context() as patch:
        ran = counting(patch)
        resumed = probes.causal_scores(model, IDS, **running)
        assert len(ran) == 1  # the third of three batches
        again = probes.causal_scores(model, IDS, **running)
        assert len(ran) == 1
    assert not list(tmp_path.glob("*batches*")) and not list(tmp_path.rglob("*.part"))
    for name, rows in straight.by_document.items():
        assert np.array_equal(resumed.by_document[name], rows, equal_nan=True)
        assert np.array_equal(again.by_document[name], rows, equal_nan=True)


def test_a_kept_result_is_of_this_model_text_and_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("hc")
    ran = counting(monkeypatch)
    running: dict[str, Any] = {"cache": tmp_path, **QUIET}
    probes.layer_pruning(model, IDS, **running)
    probes.layer_pruning(model, IDS, skip="reference", **running)
    probes.layer_pruning(model, IDS[:4], **running)
    with torch.no_grad():
        model.lm_head.w_out.weight[0, 0] += 1e-9
    probes.layer_pruning(model, IDS, **running)
    assert len(ran) == 4
    kept = next(tmp_path.glob("*.npz"))
    kept.write_bytes(b"cut short")
    probes.layer_pruning(model, IDS, **running)
    for path in tmp_path.glob("*.npz"):
        path.write_bytes(b"")
    last = probes.layer_pruning(model, IDS, **running)
    assert len(ran) > 4 and np.isfinite(last["loss"])


def test_memory_does_not_grow_with_the_number_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("full_attnres")
    make, alive = measuring.walk, []

    def watched(model: Any) -> Any:
        gc.collect()
        alive.append(sum(x.nbytes for x in gc.get_objects() if type(x) is torch.Tensor))
        return make(model)

    monkeypatch.setattr(measuring, "walk", watched)
    for probe in (probes.causal_scores, probes.path_weights):
        alive.clear()
        probe(model, tokens(4, 6), batch_size=1, **QUIET)
        assert len(alive) == 4 and max(alive) - alive[0] < 2 * SHAPE.d_model * 8 * 6


def test_the_late_pairs() -> None:
    assert first_late_layer(32) == 8 and first_late_layer(2) == 1 and first_late_layer(70) == 18
    scores = np.full((32, 32), np.nan)
    rows, columns = np.triu_indices(32, 1)
    scores[rows, columns] = np.where(rows >= 8, columns / 31, 99.0)
    assert len(probes.late_scores(scores)) == 276
    assert probes.share_above(scores, 0.999) == 23 / 276 and probes.share_above(scores, 1.0) == 0
    thresholds, shares = probes.survival(scores)
    assert shares[0] == 1 and shares[-1] == 0 and (np.diff(shares) <= 0).all()
    for t, share in zip(thresholds, shares, strict=True):
        assert share == probes.share_above(scores, t)
    scores[10, 20] = np.nan
    with pytest.raises(ValueError, match="1 of 276 late pairs"):
        probes.late_scores(scores)


def test_the_late_table_resamples_documents() -> None:
    model = random_model("hc")
    causal, permutation = (p(model, IDS, **QUIET) for p in (probes.causal_scores, probes.permutation_scores))
    table = probes.late_table({"HC": causal}, {"HC": permutation}, n=200).set_index("score")
    assert list(table["threshold"]) == [0.45, 0.45, 0.15] and (table["n_pairs"] == 1).all()
    for score, values in (
        ("causal", causal["score"]),
        ("causal, branch outputs", causal["branch_score"]),
        ("permutation", probes.permutation_score(permutation)),
    ):
        assert table.loc[score, "share"] == float(values[1, 2] > table.loc[score, "threshold"])
        assert table.loc[score, "low"] <= table.loc[score, "share"] <= table.loc[score, "high"]
    one = probes.late_table({"HC": probes.causal_scores(model, IDS[:1], **QUIET)}, {})
    assert one["low"].map(math.isnan).all()


def test_the_control_is_the_model_before_its_first_step() -> None:
    spec = db.TrainSpec(design="mhc", shape=SHAPE, lr=1e-3, seed=5, init_std=0.03, options={"n_streams": 2})
    model = probes.at_step_0(spec)
    expected = db.build_model("mhc", SHAPE, seed=5, init_std=0.03, n_streams=2).state_dict()
    assert not model.training and list(expected) == list(model.state_dict())
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
