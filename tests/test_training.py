"""Training: resume to the bit, refusals in words, divergence and damage as rows instead of crashes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

import depthbench as db
from depthbench import records
from depthbench.run_folder import RunRefused, last_row, read_history


def spec_of(shape: db.Shape, design: str = "pre_ln", **changes: Any) -> db.TrainSpec:
    recipe: dict[str, Any] = {
        "lr": 5e-3,
        "data": "tiny",
        "seq_len": 32,
        "global_batch_tokens": 128,
        "n_tokens": 12 * 128,
    }
    return db.TrainSpec(design=design, shape=shape, **(recipe | changes))


def run(spec: db.TrainSpec, folder: Path, root: Path, **how: Any) -> db.RunRecord:
    return db.train(spec, folder, data_root=root, progress=False, **({"record_file": None} | how))


def same_but_for_time(a: db.RunRecord, b: db.RunRecord) -> None:
    left, right = (
        record.model_dump(exclude={"wall_s", "tokens_per_s", "peak_bytes", "n_resumes", "provenance"})
        for record in (a, b)
    )
    assert left == right


@pytest.mark.parametrize("design", db.designs.names())
def test_resume_is_bitwise(design: str, tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    spec = spec_of(tiny_shape, design)
    straight = run(spec, tmp_path / "a", tiny_data)
    first = run(spec, tmp_path / "b", tiny_data, save_interval=3, stop_at_step=7)
    assert (first.status, first.steps, first.val_loss) == ("stopped", 7, None)
    second = run(spec, tmp_path / "b", tiny_data, save_interval=3)
    assert (second.status, second.n_resumes) == ("complete", 1)
    same_but_for_time(straight, second)
    assert (tmp_path / "a/history.jsonl").read_text() == (tmp_path / "b/history.jsonl").read_text()
    weights = [(tmp_path / name / "final/model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


def test_kill_in_the_middle_changes_no_bit(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    spec = spec_of(tiny_shape, "hc", n_tokens=400 * 128)
    straight = run(spec, tmp_path / "a", tiny_data)
    code = (
        "import sys, depthbench as db; from pathlib import Path\n"
        "spec = db.TrainSpec.model_validate_json(sys.argv[1])\n"
        "db.train(spec, sys.argv[2], data_root=sys.argv[3], record_file=None, save_interval=20, progress=False)"
    )
    command = [sys.executable, "-c", code, spec.model_dump_json(), str(tmp_path / "b"), str(tiny_data)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / "b/step60/.metadata.json").exists():
        assert process.poll() is None and time.monotonic() < deadline, "the run ended or hung before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "b/record.json").exists()
    # Steps past the last checkpoint may have been written before a kill, the last one half: they are run again.
    with open(tmp_path / "b/history.jsonl", "a") as history:
        history.write('{"step": 399, "tokens": 1, "loss": 9.0, "lr": 1.0, "grad_norm": 9.0}\n{"step": 4')
    resumed = run(spec, tmp_path / "b", tiny_data)
    assert resumed.n_resumes == 1
    same_but_for_time(straight, resumed)
    assert (tmp_path / "a/history.jsonl").read_text() == (tmp_path / "b/history.jsonl").read_text()


def test_complete_run_is_returned_not_repeated(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    spec, rows = spec_of(tiny_shape), tmp_path / "runs.jsonl"
    first = run(spec, tmp_path / "a", tiny_data, record_file=rows)
    written = (tmp_path / "a/final/model.safetensors").stat().st_mtime_ns
    assert run(spec, tmp_path / "a", tiny_data, record_file=rows) == first
    assert (tmp_path / "a/final/model.safetensors").stat().st_mtime_ns == written
    assert len(rows.read_text().splitlines()) == 1
    assert not list((tmp_path / "a").glob("step*")), "resume checkpoints go once the weights are kept"


def test_a_kill_between_row_and_record_loses_no_row(
    tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, rows = spec_of(tiny_shape), tmp_path / "runs.jsonl"

    def killed(path: Path, text: str) -> None:
        if path.name == "record.json":
            raise KeyboardInterrupt
        path.write_text(text)

    monkeypatch.setattr("depthbench.training.write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        run(spec, tmp_path / "a", tiny_data, record_file=rows)
    monkeypatch.undo()
    finished = run(spec, tmp_path / "a", tiny_data, record_file=rows)
    found = list(records.read(rows))
    assert [row.status for row in found] == ["complete", "complete"], "the last line of a run id is its row"
    same_but_for_time(*found)
    assert finished == found[-1]


def test_rows_of_a_stopped_and_finished_run(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    spec, rows = spec_of(tiny_shape), tmp_path / "runs.jsonl"
    run(spec, tmp_path / "a", tiny_data, record_file=rows, stop_at_step=4)
    run(spec, tmp_path / "a", tiny_data, record_file=rows)
    assert [json.loads(line)["status"] for line in rows.read_text().splitlines()] == ["stopped", "complete"]
    frame = db.load_runs("local", local=rows)
    assert list(frame.status) == ["complete"]


def test_weights_and_data_have_seeds_of_their_own(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    def losses(name: str, **seeds: int) -> list[float]:
        run(spec_of(tiny_shape, lr=1e-30, weight_decay=0.0, **seeds), tmp_path / name, tiny_data)
        return [row["loss"] for row in read_history(tmp_path / name / "history.jsonl")]

    base = losses("a")
    other_weights, other_order = losses("b", seed=1), losses("c", data_seed=1)
    assert base != other_weights and base != other_order
    # Weights that stand still: another order of the data gives other batches of the same text, so nearly the same loss.
    spread = max(abs(x - y) for x, y in zip(base, other_order, strict=True))
    assert 0 < spread < 0.1


def test_training_starts_from_build_model(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    """The step-0 control of a probe is `build_model` with the run's seed: a run at learning rate ~0 must end there."""
    spec = spec_of(tiny_shape, "hc", lr=1e-30, seed=3, weight_decay=0.0)
    run(spec, tmp_path / "a", tiny_data)
    start = db.build_model("hc", tiny_shape, seed=3).state_dict()
    for name, value in load_file(tmp_path / "a/final/model.safetensors").items():
        torch.testing.assert_close(value, start[name], rtol=0, atol=1e-12)


def test_loss_falls_and_the_schedule_is_the_papers(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    spec = spec_of(tiny_shape, n_tokens=100 * 128)
    record = run(spec, tmp_path / "a", tiny_data)
    history = read_history(tmp_path / "a/history.jsonl")
    assert [row["step"] for row in history] == list(range(1, 101))
    assert record.val_loss is not None and record.val_loss.mean < history[0]["loss"] - 0.5
    rates = [row["lr"] for row in history]
    assert max(rates) == pytest.approx(5e-3) and rates.index(max(rates)) + 1 in (10, 11)
    assert rates[0] == pytest.approx(5e-4) and rates[-1] == pytest.approx(5e-4, rel=0.02)


def test_optimiser_groups_decay_all_but_the_exempt(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    plain = run(spec_of(tiny_shape), tmp_path / "a", tiny_data).optimizer_groups
    assert [(group["weight_decay"], group["n_elements"]) for group in plain] == [(0.1, tiny_shape.num_params().total)]
    streams = run(spec_of(tiny_shape, "hc"), tmp_path / "b", tiny_data).optimizer_groups
    exempt = {group["weight_decay"]: group["n_elements"] for group in streams}
    assert exempt[0.0] == tiny_shape.n_sublayers * (4 * 5 + 4)
    assert sum(exempt.values()) == tiny_shape.num_params("hc").total


def test_a_design_can_scale_the_rate_of_its_blocks(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    spec = spec_of(tiny_shape, "depth_mup", options={"base_layers": 8})  # the shape has 2 layers, a quarter
    groups = {group["initial_lr"]: group for group in run(spec, tmp_path / "a", tiny_data).optimizer_groups}
    assert set(groups) == {5e-3, 5e-3 * 2}
    assert groups[1e-2]["n_elements"] == tiny_shape.num_params().backbone
    assert groups[1e-2]["eps"] == pytest.approx(2e-8) and groups[5e-3]["eps"] == 1e-8


def test_fairness_only_the_design_differs(tiny_shape: db.Shape) -> None:
    plain = spec_of(tiny_shape).resolved()
    for design in db.designs.names():
        other = spec_of(tiny_shape, design).resolved()
        assert {key for key in plain if plain[key] != other[key]} <= {"design", "options"}


def test_run_id_follows_what_can_change_the_result(tiny_shape: db.Shape) -> None:
    base = spec_of(tiny_shape)
    assert base.run_id == spec_of(tiny_shape).run_id
    changed = [{"lr": 1e-3}, {"seed": 1}, {"data_seed": 1}, {"n_tokens": 9 * 128}, {"weight_decay": 0.0}, {"data": "b"}]
    ids = [spec_of(tiny_shape, **change).run_id for change in changed] + [spec_of(tiny_shape, "hc").run_id]
    assert len({base.run_id, *ids}) == len(ids) + 1
    named = spec_of(tiny_shape, "hc", options={"n_streams": 4})
    assert named.run_id == spec_of(tiny_shape, "hc").run_id, "naming a default is the same run"


def test_divergence_is_a_row(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    record = run(spec_of(tiny_shape, lr=1e30, max_grad_norm=1e30), tmp_path / "a", tiny_data)
    assert record.status == "diverged" and record.val_loss is None
    assert record.reason is not None and "step" in record.reason
    assert run(spec_of(tiny_shape, lr=1e30, max_grad_norm=1e30), tmp_path / "a", tiny_data) == record


def test_damaged_checkpoint_falls_back_to_the_one_before(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    spec = spec_of(tiny_shape)
    straight = run(spec, tmp_path / "a", tiny_data)
    run(spec, tmp_path / "b", tiny_data, save_interval=4, stop_at_step=8)
    for path in (tmp_path / "b/step8/model_and_optim").glob("*.distcp"):
        path.write_bytes(path.read_bytes()[:-200])
    resumed = run(spec, tmp_path / "b", tiny_data)
    assert (tmp_path / "b/damaged-step8").is_dir()
    same_but_for_time(straight, resumed)


def test_all_checkpoints_damaged_starts_over(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    spec = spec_of(tiny_shape)
    straight = run(spec, tmp_path / "a", tiny_data)
    run(spec, tmp_path / "b", tiny_data, save_interval=4, stop_at_step=5)
    for path in (tmp_path / "b").glob("step*/train/rank0.pt"):
        path.write_bytes(b"not a checkpoint")
    same_but_for_time(straight, run(spec, tmp_path / "b", tiny_data))


def test_full_disk_says_so_and_keeps_the_last_checkpoint(
    tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from olmo_core.train import Checkpointer

    spec, save = spec_of(tiny_shape), Checkpointer.save

    def full(self: Checkpointer, folder: str, *args: Any, **kwargs: Any) -> None:
        if str(folder).endswith("step8"):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, folder, *args, **kwargs)

    monkeypatch.setattr(Checkpointer, "save", full)
    with pytest.raises(OSError, match=r"disk full at step 8.*run again"):
        run(spec, tmp_path / "a", tiny_data, save_interval=4)
    monkeypatch.undo()
    assert (tmp_path / "a/step4/.metadata.json").exists()
    resumed = run(spec, tmp_path / "a", tiny_data)
    assert (resumed.status, resumed.n_resumes) == ("complete", 1)


def test_second_process_is_told_who_holds_the_run(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    (tmp_path / "holder.txt").write_text("process 4711 on elsewhere since noon")
    with FileLock(tmp_path / "lock"), pytest.raises(RunRefused, match="process 4711 on elsewhere"):
        run(spec_of(tiny_shape), tmp_path, tiny_data)
    assert run(spec_of(tiny_shape), tmp_path, tiny_data).status == "complete"


def test_other_specification_and_other_data_are_refused(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    from datasets import Dataset

    run(spec_of(tiny_shape), tmp_path / "a", tiny_data, stop_at_step=3)
    with pytest.raises(RunRefused, match=r"recipe\.lr: folder 0\.005, asked 0\.001"):
        run(spec_of(tiny_shape, lr=1e-3), tmp_path / "a", tiny_data)
    texts = [f"Quite another text, number {i}, told in other words than before." * 8 for i in range(240)]
    db.data.prepare_from(
        Dataset.from_dict({"text": texts}), "tiny", tmp_path / "other", vocab_size=300, val_fraction=0.1
    )
    with pytest.raises(RunRefused, match=r"data\.train_sha256"):
        run(spec_of(tiny_shape), tmp_path / "a", tmp_path / "other")
    assert run(spec_of(tiny_shape), tmp_path / "a", tiny_data).status == "complete", "the refusals lost nothing"


def test_vocabulary_that_does_not_fit(tiny_data: Path, tmp_path: Path) -> None:
    shape = db.Shape(n_layers=1, d_model=16, n_heads=2, d_ff=32, vocab_size=512)
    with pytest.raises(ValueError, match="300 token ids and the shape 512"):
        run(spec_of(shape), tmp_path, tiny_data)


def test_missing_and_truncated_data(tiny_data: Path, tiny_shape: db.Shape, tmp_path: Path) -> None:
    with pytest.raises(db.data.DataError, match="nowhere"):
        run(spec_of(tiny_shape, data="nowhere"), tmp_path / "a", tiny_data)
    shutil.copytree(tiny_data / "tiny", tmp_path / "tiny")
    tokens = (tmp_path / "tiny/train.npy").read_bytes()
    (tmp_path / "tiny/train.npy").write_bytes(tokens[:-100])
    with pytest.raises(db.data.DataError, match="tiny"):
        run(spec_of(tiny_shape), tmp_path / "b", tmp_path)


def test_bad_specifications_say_what_is_allowed(tiny_shape: db.Shape) -> None:
    with pytest.raises(ValueError, match="full_attnres"):
        spec_of(tiny_shape, "resnet")
    with pytest.raises(ValueError, match="multiple of seq_len"):
        spec_of(tiny_shape, global_batch_tokens=100)
    with pytest.raises(ValueError, match="learning_rate"):
        spec_of(tiny_shape, learning_rate=1.0)
    with pytest.raises(ValueError, match="n_streams"):
        spec_of(tiny_shape, "hc", options={"streams": 2})


def test_paper_defaults() -> None:
    spec = db.TrainSpec(design="hc", shape=db.SUITES["main-400m"].shape(24), lr=2e-3)
    resolved = spec.resolved()
    assert spec.global_batch_tokens == 1_048_576
    assert spec.n_steps == round(20 * spec.shape.num_params("hc").total / 1_048_576)
    for key, value in {"betas": [0.9, 0.95], "adam_eps": 1e-8, "weight_decay": 0.1, "max_grad_norm": 1.0}.items():
        assert resolved[key] == value
    assert resolved["warmup_steps"] == round(0.1 * spec.n_steps)


def test_last_row_is_the_last_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert last_row(path) is None
    path.write_text("")
    assert last_row(path) is None
    path.write_text("".join(json.dumps({"step": step, "loss": 1.0}) + "\n" for step in range(1, 2000)) + '{"step": 20')
    assert last_row(path) == {"step": 1999, "loss": 1.0} == read_history(path)[-1]
