"""Records: what is written can be read, what was cut or is foreign is said, and nothing is overwritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import depthbench as db
from depthbench import records


def record(**changes: Any) -> records.RunRecord:
    row: dict[str, Any] = {
        "run_id": "pre_ln-L2-d8-lr5e-3-s0-00000000",
        "suite": "pocket",
        "design": "pre_ln",
        "options": {},
        "shape": {"n_layers": 2, "d_model": 8, "n_heads": 1, "n_kv_heads": 1, "d_ff": 16, "vocab_size": 10},
        "params": {"total": 10, "backbone": 5, "embedding": 4, "design": 0},
        "recipe": {"lr": 5e-3, "seed": 0, "data_seed": 42, "seq_len": 8, "global_batch_tokens": 16},
        "optimizer_groups": [],
        "data": {"name": "t", "revision": "r", "train_sha256": "a", "val_sha256": "b", "n_train_tokens": 9},
        "status": "complete",
        "steps": 3,
        "tokens": 48,
        "val_loss": {"mean": 3.5, "se": 0.1, "n_tokens": 7, "n_documents": 2, "bits_per_byte": None},
        "train_loss_last": 3.4,
        "grad_norm_max": 1.0,
        "curve": "history.jsonl",
        "weights_sha256": "c",
        "wall_s": 1.0,
        "tokens_per_s": 48.0,
        "peak_bytes": 1,
        "n_resumes": 0,
        "provenance": {
            "git_commit": None,
            "dirty": None,
            "command": "x",
            "versions": {},
            "device": "cpu",
            "n_devices": 1,
            "n_threads": 1,
            "dtype": "fp32",
            "compile": False,
            "microbatch_tokens": 16,
            "started": "2026-01-01T00:00:00+00:00",
            "ended": "2026-01-01T00:00:01+00:00",
        },
    }
    return records.RunRecord(**(row | changes))


def test_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep/runs.jsonl"
    rows = [record(), record(run_id="b", status="diverged", val_loss=None, reason="nan loss encountered at step 3")]
    for row in rows:
        records.append(row, path)
    assert list(records.read(path)) == rows
    frame = db.load_runs("local", local=path)
    assert set(frame.columns) == set(db.load_runs("local", local=tmp_path / "none").columns)
    assert frame.set_index("run_id").loc["b", "status"] == "diverged"
    assert frame.aspect_ratio.tolist() == [4.0, 4.0]


def test_cut_line_is_left_out_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    records.append(record(), path)
    path.write_bytes(path.read_bytes() + b'{"run_id": "half')
    assert len(list(records.read(path))) == 1
    records.append(record(run_id="c"), path)
    with pytest.raises(records.RecordError, match=r"runs\.jsonl:2: not a run record"):
        list(records.read(path))
    kept = [line for line in path.read_text().splitlines() if "half" not in line]
    path.write_text("\n".join(kept) + "\n")
    assert [row.run_id for row in records.read(path)] == [record().run_id, "c"]


def test_foreign_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    records.append(record(), path)
    extra = record().model_dump_json().replace('"run_id"', '"extra": 1, "run_id"', 1)
    path.write_text(path.read_text() + extra + "\n")
    with pytest.raises(records.RecordError, match=r":2: not a run record: extra"):
        list(records.read(path))


def test_local_row_wins_and_origin_says_so(tmp_path: Path) -> None:
    committed, local = tmp_path / "committed.jsonl", tmp_path / "local.jsonl"
    for name in ("a", "b"):
        records.append(record(run_id=name), committed)
    records.append(record(run_id="b", wall_s=9.0), local)
    frame = db.load_runs(committed=committed, local=local).set_index("run_id")
    assert frame.origin.to_dict() == {"a": "committed", "b": "local"}
    assert frame.loc["b", "wall_s"] == 9.0
    assert list(db.load_runs("committed", committed=committed, local=local).origin) == ["committed"] * 2


def test_committed_records_are_valid_and_complete() -> None:
    for row in records.read(records.COMMITTED_RUNS):
        shape = db.Shape(**row.shape)
        assert row.params.total == shape.num_params(row.design, **row.options).total, row.run_id
        assert row.kind == "measured" and row.provenance.git_commit and not row.provenance.dirty, row.run_id
        assert (records.RESULTS / "curves" / f"{row.run_id}.csv").exists(), row.run_id
