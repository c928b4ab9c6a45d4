"""Run jobs side by side: one process a run, pinned to its cores, executing `notebooks/run.md`; progress over all."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from depthbench.paths import DATA, NOTEBOOKS, ROOT
from depthbench.records import LOCAL_RUNS
from depthbench.run_folder import last_row
from launch.grid import Job

PAGE = "page.ipynb"
STOPPED = 75  # EX_TEMPFAIL: stopped before the end, the same command goes on


@dataclass
class Worker:
    """One process at work on one job."""

    job: Job
    cores: Sequence[int]
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        run_dir = self.job.run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "parameters.json").write_text(json.dumps(parameters(self.job), indent=1))
        threads = str(len(self.cores))
        with open(run_dir / "page.log", "wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "launch.notebooks",
                    NOTEBOOKS / "run.md",
                    run_dir / PAGE,
                    run_dir / "parameters.json",
                ],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                # Ctrl-C reaches the launcher alone, which then asks each run to save.
                start_new_session=True,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": threads,
                    "MKL_NUM_THREADS": threads,
                    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
                },
                preexec_fn=_child_setup(self.cores),
            )

    @property
    def last(self) -> dict[str, Any] | None:
        """The last row of the run's history."""
        return last_row(self.job.run_dir / "history.jsonl")

    @property
    def step(self) -> int:
        """The last step in the run's history."""
        return row["step"] if (row := self.last) else 0

    @property
    def progress(self) -> str:
        """Design, depth and latest training loss, for the bar."""
        name = f"{self.job.spec.design} L{self.job.spec.shape.n_layers}"
        return f"{name} {row['loss']:.3f}" if (row := self.last) else f"{name} starting"

    def stop(self) -> None:
        """Ask the training process to save and end."""
        holder = self.job.run_dir / "holder.txt"
        if self.job.state == "running" and holder.exists():
            os.kill(int(holder.read_text().split()[1]), signal.SIGTERM)
        else:
            self.process.terminate()

    def trouble(self) -> str:
        """The last lines of the page's log, for a run that failed."""
        return "\n".join((self.job.run_dir / "page.log").read_text(errors="replace").strip().splitlines()[-8:])


def _child_setup(cores: Sequence[int]) -> Callable[[], None]:
    def setup() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        if sys.platform == "linux":
            # A launcher that is killed takes its workers with it; the kernel follows its parent.
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)

    return setup


def parameters(job: Job) -> dict[str, Any]:
    """What `notebooks/run.md` is told for a job."""
    spec = job.spec
    shape = spec.shape.model_dump()
    recipe = spec.model_dump(
        mode="json", exclude={"design", "shape", "lr", "seed", "options", "n_tokens", "data"}, exclude_defaults=True
    )
    return {
        "design": spec.design,
        "options": spec.options,
        **shape,
        "lr": spec.lr,
        "seed": spec.seed,
        "n_tokens": spec.n_steps * spec.global_batch_tokens,
        "data": spec.data,
        "recipe": recipe,
        "suite": job.suite,
        "kind": "measured",
        "run_dir": str(job.run_dir),
        "data_root": str(DATA),
        "record_file": str(LOCAL_RUNS),
    }


def run_all(todo: Sequence[Job], n_workers: int) -> int:
    """Run jobs `n_workers` at a time; 0 if all ended (diverged counts as ended), 1 if one failed, 75 if stopped.

    A run that fails does not stop the others. Ctrl-C or SIGTERM asks every run to save; a second one ends them at once.
    """
    # A shell starts background jobs with SIGINT ignored; asked to stop, they should stop all the same.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    n_workers = max(1, min(n_workers, len(cores)))
    slots = [cores[i::n_workers] for i in range(n_workers)]
    waiting, active, ended, failed = list(todo), {}, 0, []  # type: list[Job], dict[int, Worker], int, list[Job]
    bar = tqdm(
        total=sum(job.spec.n_steps for job in todo),
        unit="step",
        desc=f"{len(todo)} runs",
        mininterval=1.0 if sys.stderr.isatty() else 15.0,
        dynamic_ncols=True,
    )
    stopping = False
    while waiting or active:
        try:
            while waiting and not stopping and len(active) < n_workers:
                slot = next(i for i in range(n_workers) if i not in active)
                active[slot] = Worker(waiting.pop(0), slots[slot])
            for slot, worker in list(active.items()):
                if worker.process.poll() is None:
                    continue
                del active[slot]
                worker.job.__dict__.pop("record", None)
                ended += worker.job.spec.n_steps
                if worker.job.record is None and not stopping:
                    failed.append(worker.job)
                    bar.write(f"FAILED {worker.job.spec.run_id}\n{worker.trouble()}")
                else:
                    bar.write(summary(worker.job))
            if stopping and not active:
                break
            bar.n = ended + sum(worker.step for worker in active.values())
            bar.set_postfix_str(", ".join(worker.progress for worker in active.values()), refresh=False)
            bar.update(0)
            time.sleep(0.5)
        except KeyboardInterrupt:
            if stopping:
                for worker in active.values():
                    os.killpg(worker.process.pid, signal.SIGKILL)
                raise
            stopping = True
            bar.write(
                "stopping: each run saves a checkpoint; the same command goes on from there (Ctrl-C again ends at once)"
            )
            for worker in active.values():
                worker.stop()
    bar.refresh()
    bar.close()
    return STOPPED if stopping else 1 if failed else 0


def summary(job: Job) -> str:
    """One line on how a run ended."""
    record = job.record
    if record is None:
        return f"stopped  {job.spec.run_id}"
    if record.val_loss is None:
        return f"{record.status} {record.run_id}: {record.reason}"
    noise = f" +- {record.val_loss.se:.3f} (evaluation noise)" if record.val_loss.se is not None else ""
    return f"done {record.run_id}: {record.val_loss.mean:.4f}{noise} nats, {record.wall_s:.0f} s"
