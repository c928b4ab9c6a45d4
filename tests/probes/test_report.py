"""Kept results, the runner and the report card: what is kept is small, true to the probe, and made once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import depthbench as db
from depthbench.checkpoints import save_final
from depthbench.probes import ProbeResult, kept, load, measure, report, runs
from depthbench.probes.__main__ import main
from probes.common import QUIET

LAYERS = 4


def made(design: str, data: str = "tiny", seed: int = 0) -> tuple[Any, db.TrainSpec]:
    shape = db.Shape(n_layers=LAYERS, d_model=16, n_heads=2, d_ff=32, vocab_size=300)
    spec = db.TrainSpec(design=design, shape=shape, lr=1e-3, data=data, seq_len=16, global_batch_tokens=64, seed=seed)
    model = db.build_model(design, shape, seed=seed + 100)
    with torch.no_grad():  # far from the start, so that trained and control differ
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model.eval(), spec


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs, "CACHE", tmp_path / "cache")
    model, spec = made("hc")
    save_final(model, spec, tmp_path / "run" / "final")
    (tmp_path / "run" / "record.json").write_text('{"val_loss": {"mean": 5.5}}')
    return tmp_path / "run"


def asked(run_dir: Path, tiny_data: Path, *more: str) -> list[str]:
    return [str(run_dir), "--data-root", str(tiny_data), "--windows", "5", "--out", str(run_dir.parent / "out"), *more]


def test_the_runner_keeps_each_probe_of_both_states_and_makes_it_once(
    run_dir: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked(run_dir, tiny_data)) == 0
    out, run_id = run_dir.parent / "out", made("hc")[1].run_id
    names = set(runs.probes_for("hc"))
    assert "depth_mixing" not in names and "residual_transport" in names
    for state in kept.STATES:
        assert {path.stem for path in (out / run_id / state).glob("*.npz")} == names
    assert f"{2 * len(names)} results made, 0 there already" in capsys.readouterr().out
    assert main(asked(run_dir, tiny_data)) == 0
    assert f"0 results made, {2 * len(names)} there already" in capsys.readouterr().out

    result = load(out / run_id / "final" / "layer_pruning")
    told = result.provenance
    assert (told["run_id"], told["state"], told["n_documents"], told["val_loss_nats"]) == (run_id, "final", 5, 5.5)
    assert told["text"]["data"] == "tiny" and told["text"]["split"] == "val"
    windows = runs.validation_windows("tiny", 5, 16, tiny_data)
    for state, model in (("final", made("hc")[0]), ("step0", db.probes.at_step_0(made("hc")[1]))):
        whole = db.probes.layer_pruning(model, windows, **QUIET)
        small = load(out / run_id / state / "layer_pruning")
        assert np.allclose(small.by_document["loss_increase"], whole.by_document["loss_increase"], atol=1e-6)


def test_a_damaged_file_and_other_weights_are_made_again(run_dir: Path, tiny_data: Path) -> None:
    args = asked(run_dir, tiny_data, "--probes", "layer_pruning", "--no-step-0")
    assert main(args) == 0
    out, run_id = run_dir.parent / "out", made("hc")[1].run_id
    arrays = out / run_id / "final" / "layer_pruning.npz"
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[:-40])
    assert main(args) == 0 and arrays.read_bytes() == whole
    before = load(arrays)
    save_final(made("hc", seed=7)[0], made("hc")[1], run_dir / "final")
    assert main(args) == 0
    assert not np.array_equal(load(arrays)["loss_increase"], before["loss_increase"])


def test_mistakes_are_one_line(run_dir: Path, tiny_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(run_dir, tiny_data, "--probes", "tarot")) == 2
    assert "no probe tarot; the probes are angular_distance" in capsys.readouterr().err
    assert main([str(run_dir / "nothing")]) == 2
    assert "config.json" in capsys.readouterr().err
    assert main(asked(run_dir, tiny_data, "--seq-len", "100000")) == 2
    assert "ask for fewer or shorter ones" in capsys.readouterr().err


@pytest.mark.parametrize("probe", sorted(runs.PROBES))
def test_a_compact_result_has_the_same_means(probe: str) -> None:
    design = {"residual_transport": "mhc", "depth_mixing": "block_attnres"}.get(probe, "pre_ln")
    ids = np.random.default_rng(0).integers(0, 300, (6, 16))
    result = runs.PROBES[probe](made(design)[0], ids, **QUIET)
    small = kept.compact(result)
    for name, mean in result.arrays.items():
        assert np.allclose(small[name], mean, rtol=1e-4, atol=1e-7, equal_nan=True), name
        rows = 6 if name in kept.BY_DOCUMENT[probe] else 1
        assert small.by_document[name].shape == (rows, *mean.shape)
        assert small.by_document[name].dtype == np.float32
    assert small.provenance["n_documents"] == 6


def test_short_rounds_to_thirteen_bits_and_keeps_what_is_no_number() -> None:
    values = np.array([1.0, -3.14159265, 1e-12, 0.0, np.nan, np.inf, 12345.678])
    found = kept.short(values)
    number = np.isfinite(values)
    assert np.allclose(found[number], values[number], rtol=2**-14, atol=0)
    assert np.isnan(found[4]) and np.isinf(found[5])
    assert not (found[number].view(np.uint32) & ((1 << 10) - 1)).any()


def keep(
    root: Path, run_id: str, design: str, n_layers: int, loss: float, *, control: bool = True, n_steps: int = 9
) -> None:
    for state in kept.STATES[: 1 + control]:
        told = {"design": design, "n_layers": n_layers, "run_id": run_id, "val_loss_nats": loss}
        told["recipe"] = {"n_steps": n_steps, "data": "tiny"}
        rows = {"loss": np.full(3, loss)}
        result = ProbeResult("layer_pruning", rows, {"loss": ()}, {"loss": "nats"}, {}, told)
        result.save(root / run_id / state / "layer_pruning")


def test_choose_takes_the_deepest_shared_depth_and_the_best_run(tmp_path: Path) -> None:
    assert kept.choose("layer_pruning", folder=tmp_path).trained == []
    keep(tmp_path, "a4", "pre_ln", 4, 3.0)
    keep(tmp_path, "a8", "pre_ln", 8, 3.2)
    keep(tmp_path, "a8-better", "pre_ln", 8, 3.1, control=False)
    keep(tmp_path, "b4", "hc", 4, 3.3)
    keep(tmp_path, "b8", "hc", 8, 2.9)
    keep(tmp_path, "c16", "moda", 16, 2.8)

    def ids(choice: kept.Choice) -> list[str]:
        return [result.provenance["run_id"] for result in choice.trained]

    choice = kept.choose("layer_pruning", folder=tmp_path)
    assert ids(choice) == ["a8-better", "b8"] and "moda" in choice.missing and "hc" not in choice.missing
    assert [c.provenance["run_id"] for c in choice.step_0] == ["b8"]
    assert choice.of("pre_ln")[1] is None and choice.of("hc")[1] is not None
    assert "`b8`" in choice.words() and "moda" in choice.words() and "moda" not in choice.words(["keel"])
    assert ids(kept.choose("layer_pruning", folder=tmp_path, same_depth=False)) == ["a8-better", "b8", "c16"]
    assert ids(kept.choose("layer_pruning", folder=tmp_path, n_layers=4)) == ["a4", "b4"]
    assert ids(kept.choose("layer_pruning", folder=tmp_path, designs=["moda"])) == ["c16"]
    with pytest.raises(KeyError, match="no kept result of keel; there are pre_ln, hc"):
        choice.of("keel")


def test_choose_never_draws_two_budgets_beside_each_other(tmp_path: Path) -> None:
    keep(tmp_path, "a-long", "pre_ln", 8, 2.0, n_steps=50)
    keep(tmp_path, "a", "pre_ln", 8, 3.0)
    keep(tmp_path, "b", "hc", 8, 3.1)
    shown = kept.choose("layer_pruning", folder=tmp_path).trained
    assert [result.provenance["run_id"] for result in shown] == ["a", "b"]  # more designs before more steps
    keep(tmp_path, "b-long", "hc", 8, 2.1, n_steps=50)
    shown = kept.choose("layer_pruning", folder=tmp_path).trained
    assert [result.provenance["run_id"] for result in shown] == ["a-long", "b-long"]


def test_the_card_answers_from_the_arrays() -> None:
    steps = np.zeros((5, 5))
    for l, angle in enumerate((0.4, 0.1, 0.2, 0.3)):
        steps[l, l + 1] = steps[l + 1, l] = angle
    assert math.isclose(report.adjacent_late(steps), 0.2)  # layers 1, 2, 3 of four
    assert report.agreed_after(np.array([[0.1, 0.6, 0.2, 0.7, 1.0]])) == 3
    assert report.agreed_after(np.array([[0.6, 0.6, 1.0]])) == 0
    assert math.isclose(report.late_share(np.arange(9) / 36.0), sum(range(3, 9)) / 36)


def test_the_card_gives_a_verdict_only_beside_a_control_and_a_band() -> None:
    model, spec = made("block_attnres")
    windows = np.random.default_rng(0).integers(0, 300, (6, 16))
    results = runs.probe_model(model, windows, **QUIET)
    control = runs.probe_model(db.probes.at_step_0(spec), windows, **QUIET)
    card = report.report_card(results, control)
    assert set(results) == set(runs.probes_for("block_attnres")) and len(card) == 8
    assert (card["low"] <= card["value"] + 1e-12).all() and (card["value"] <= card["high"] + 1e-12).all()
    for row in card.itertuples():
        outside = row.step_0 < row.low or row.step_0 > row.high
        assert ("by training" in row.verdict) == outside
    alone = report.report_card(results)
    assert set(alone["verdict"]) == {"no control: cannot tell"}
    small = {name: kept.compact(result) for name, result in results.items()}
    of_kept = report.report_card(small, control).set_index("question")
    assert of_kept["verdict"].iloc[0] == "no band: cannot tell"  # angles are kept as means
    assert np.allclose(of_kept["value"], card.set_index("question")["value"], rtol=1e-3)
    assert report.summary(alone) == "Of 8 measures: 8 no control: cannot tell."
    assert report.summary(report.report_card({})) == "No probe was run."


@pytest.mark.parametrize(
    ("step_0", "words"),
    [(0.5, "not told from step 0"), (0.1, "raised by training"), (0.9, "lowered by training")],
)
def test_verdict(step_0: float, words: str) -> None:
    assert report.verdict(0.5, 0.4, 0.6, step_0) == words
    assert report.verdict(0.5, math.nan, math.nan, step_0) == "no band: cannot tell"


def test_what_stands_around_the_probes_is_no_part_of_their_version() -> None:
    assert set(measure._AROUND) <= {path.stem for path in Path(report.__file__).parent.glob("*.py")}
