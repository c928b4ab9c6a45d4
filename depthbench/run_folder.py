"""The folder of one run: who holds it, how far it came, and what it ended with. Light: no torch, no OLMo-core.

spec.json       what was asked, resolved, and the sha256 of the data it reads
history.jsonl   step, tokens, loss, lr, grad_norm
train.log       OLMo-core's log
step<N>/        resume checkpoints (weights, optimiser, trainer state); removed when the run is complete
final/          model.safetensors and config.json: what `load_checkpoint` opens
record.json     the RunRecord, also appended to the record file
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from depthbench import provenance
from depthbench.records import RunRecord


class RunRefused(RuntimeError):
    """A run folder that must not be touched: held by another process, or made by another specification or data."""


def finished(run_dir: Path) -> RunRecord | None:
    """The record of a run folder that needs no more work (complete or diverged), else None."""
    path = run_dir / "record.json"
    return RunRecord.model_validate_json(path.read_text()) if path.exists() else None


def read_history(path: Path) -> list[dict[str, Any]]:
    """Rows of a history file; a last line cut off by a kill is left out."""
    if not path.exists():
        return []
    *lines, tail = path.read_text().split("\n")
    del tail
    return [json.loads(line) for line in lines if line]


def last_row(path: Path) -> dict[str, Any] | None:
    """The last whole row of a history file, read from its end: a long run is asked twice a second."""
    if not path.exists():
        return None
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().split(b"\n")[:-1]
    return json.loads(lines[-1]) if lines else None


@contextmanager
def hold(run_dir: Path) -> Iterator[None]:
    """Hold the folder against a second process, which is told who has it. The lock dies with its process."""
    lock, holder = FileLock(run_dir / "lock"), run_dir / "holder.txt"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        who = holder.read_text() if holder.exists() else "another process"
        raise RunRefused(f"{run_dir.name} is being run by {who}; wait for it or stop it") from None
    try:
        holder.write_text(f"process {os.getpid()} on {os.uname().nodename} since {provenance.now()}")
        yield
    finally:
        lock.release()


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send OLMo-core's log to a file; the notebook shows a bar and the result instead."""
    logger, handler = logging.getLogger("olmo_core"), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
        handler.close()


class State:
    """Seconds spent and resumes so far, over all processes that worked on the run."""

    def __init__(self, run_dir: Path):
        self.path = run_dir / "state.json"
        found = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.wall_s: float = found.get("wall_s", 0.0)
        self.n_resumes: int = found.get("n_resumes", 0)

    def save(self) -> None:
        write_atomic(self.path, json.dumps({"wall_s": self.wall_s, "n_resumes": self.n_resumes}))


def write_atomic(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(text)
    part.replace(path)
