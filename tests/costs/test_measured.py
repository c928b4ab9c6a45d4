"""Rows of measured prefill: written, read back, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import depthbench as db
from depthbench import costs
from depthbench.costs.measured import read_prefill
from depthbench.paths import ROOT
from depthbench.records import RecordError


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What benchmarks/prefill.py writes for two designs at a tiny budget."""
    out = tmp_path_factory.mktemp("costs") / "prefill.jsonl"
    measure(out)
    return out


def measure(out: Path) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / "prefill.py"), "--total", "23120", "--n-layers", "2"]
    command += ["--designs", "pre_ln", "hc", "--turns", "2", "--seq-len", "16", "--no-peak", "--out", str(out)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_row_a_design_with_its_counts_and_origin(rows: Path) -> None:
    frame = costs.load_prefill(rows.parent)
    assert list(frame.design) == ["pre_ln", "hc"]
    for row in read_prefill(rows):
        shape = db.Shape(**row.shape)
        assert row.flops == costs.prefill_flops(row.design, shape, 16)
        assert row.params_total == shape.num_params(row.design).total == row.weight_bytes / 4
        assert row.clock == "process"
        assert len(row.seconds) == len(row.ratios) == 2
        assert "benchmarks/prefill.py" in row.provenance.command
    assert (frame.tokens_per_s == 16 / frame.seconds).all()
    assert frame.ratio[0] == 1


def test_a_second_run_measures_nothing_again(rows: Path) -> None:
    before = rows.read_bytes()
    assert "every setting has a row" in measure(rows)
    assert rows.read_bytes() == before


def test_a_line_cut_off_is_left_out_and_a_wrong_one_named(rows: Path, tmp_path: Path) -> None:
    lines = rows.read_text().splitlines()
    path = tmp_path / "prefill.jsonl"
    path.write_text(lines[0] + "\n" + lines[1][:40])
    assert [row.design for row in read_prefill(path)] == ["pre_ln"]
    wrong = json.loads(lines[0]) | {"seconds": []}
    path.write_text(json.dumps(wrong) + "\n" + lines[1] + "\n")
    with pytest.raises(RecordError, match=r"prefill.jsonl:1: .*seconds"):
        read_prefill(path)


def test_a_setting_measured_again_shows_its_last_row(rows: Path, tmp_path: Path) -> None:
    first, second = rows.read_text().splitlines()
    again = json.dumps(json.loads(first) | {"seconds": [7.0], "ratios": [1.0]})
    longer = json.dumps(json.loads(first) | {"seq_len": 32})
    (tmp_path / "prefill.jsonl").write_text("\n".join([first, second, again, longer]) + "\n")
    frame = costs.load_prefill(tmp_path)
    assert sorted(zip(frame.design, frame.seq_len, strict=True)) == [("hc", 16), ("pre_ln", 16), ("pre_ln", 32)]
    assert frame[(frame.design == "pre_ln") & (frame.seq_len == 16)].seconds.item() == 7.0


def test_no_rows_is_a_frame_with_columns(tmp_path: Path) -> None:
    frame = costs.load_prefill(tmp_path / "none")
    assert frame.empty
    assert {"seconds", "peak_bytes", "tokens_per_s"} <= set(frame.columns)
