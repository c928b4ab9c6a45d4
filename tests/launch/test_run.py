"""`launch run` end to end in a root of its own: Ctrl-C, kill -9, and the same command to the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from depthbench.paths import DATA, NOTEBOOKS

GRID = ["pocket", "--designs", "pre_ln", "hc", "--n-layers", "2", "--tokens-per-param", "1"]
GRID += ["--lr", "5e-3", "--seeds", "0"]
# Threads change the order of sums, so a run and its straight twin must have as many: one.
ONE_CORE_EACH = str(len(os.sched_getaffinity(0)))
pytestmark = pytest.mark.skipif(
    not (DATA / "packages-512/manifest.json").exists(), reason="needs `make data`; un-skip by preparing packages-512"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project root whose runs and records are its own and whose data and notebooks are the checkout's."""
    (tmp_path / "build").mkdir()
    (tmp_path / "build/data").symlink_to(DATA)
    (tmp_path / "notebooks").symlink_to(NOTEBOOKS)
    return tmp_path


def start(root: Path, verb: str = "run", *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "launch", verb, *GRID, *more],
        cwd=NOTEBOOKS.parent,
        env={**os.environ, "DEPTHBENCH_ROOT": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # As a shell starts what it puts in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], what: str) -> None:
    deadline = time.monotonic() + 150
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"waited for {what}; the launcher said: {process.communicate()[0][-2000:]}")
        time.sleep(0.1)


def rows(root: Path) -> list[dict[str, object]]:
    path = root / "build/results/runs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.timeout(600)
def test_ctrl_c_and_kill_and_the_same_command(root: Path) -> None:
    runs = root / "build/runs"

    first = start(root, "run", "--workers", ONE_CORE_EACH)
    wait_for(lambda: len(list(runs.glob("*/step*/.metadata.json"))) >= 2, first, "checkpoints")
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 75, said
    assert "the same command goes on" in said
    assert {row["status"] for row in rows(root)} == {"stopped"}, "Ctrl-C saves, and the rows say how far each run came"

    second = start(root, "run", "--workers", ONE_CORE_EACH)
    saved = len(list(runs.glob("*/step*/.metadata.json")))
    wait_for(lambda: len(list(runs.glob("*/step*/.metadata.json"))) > saved, second, "another checkpoint")
    second.kill()
    second.wait()
    wait_for_release(runs)

    third = start(root, "run", "--workers", ONE_CORE_EACH)
    said, _ = third.communicate(timeout=300)
    assert third.returncode == 0, said
    done = {str(row["run_id"]): row for row in rows(root) if row["status"] == "complete"}
    assert len(done) == 2

    again = start(root)
    said, _ = again.communicate(timeout=150)
    assert again.returncode == 0 and "2 done" in said and "0 to do" in said

    straight = start_straight(root)
    assert {run_id: row["weights_sha256"] for run_id, row in done.items()} == straight
    status, _ = start(root, "status").communicate(timeout=150)
    assert "2 done" in status and "pre_ln" in status
    for run_id in done:
        page = json.loads((runs / run_id / "page.ipynb").read_text())
        assert "Validation loss" in json.dumps(page["cells"])


def wait_for_release(runs: Path) -> None:
    """The kernels of a killed launcher follow it within a few seconds."""
    from filelock import FileLock

    deadline = time.monotonic() + 30
    for folder in runs.iterdir():
        with FileLock(folder / "lock", timeout=max(0.1, deadline - time.monotonic())):
            pass


def start_straight(root: Path) -> dict[str, str]:
    """Weights of the same runs made in one go, outside the launcher."""
    code = (
        "import sys, depthbench as db\n"
        "from launch.grid import jobs\n"
        "what = dict(design_names=['pre_ln', 'hc'], n_layers=[2], tokens_per_param=1, lrs=[5e-3], seeds=[0])\n"
        "for job in jobs('pocket', **what):\n"
        "    record = db.train(job.spec, sys.argv[1] + '/' + job.spec.run_id, record_file=None, progress=False)\n"
        "    print(record.run_id, record.weights_sha256)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(root / "straight")],
        cwd=NOTEBOOKS.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return dict(line.split() for line in out.splitlines())  # type: ignore[arg-type]
