"""A suite and its filters -> the runs they mean, and the state of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from filelock import FileLock, Timeout

from depthbench import designs
from depthbench.paths import RUNS
from depthbench.records import RunRecord, load_runs, recipe_key
from depthbench.run_folder import finished
from depthbench.spec import TrainSpec
from depthbench.suites import SUITES, Suite
from depthbench.sweeps import best_rates, rate_for

# Attained on small models by one CPU core of 2024; only for runs with no measured neighbour, and printed as rough.
ROUGH_FLOP_PER_S = 1e10
# What a suite gives in its own words is set run by run.
SPEC_FIELDS = set(TrainSpec.model_fields) - {"design", "shape", "lr", "seed", "options", "n_tokens", "tokens_per_param"}


@dataclass(frozen=True)
class Job:
    """One run of a suite."""

    suite: str
    spec: TrainSpec
    runs: Path = RUNS

    @property
    def run_dir(self) -> Path:
        return self.runs / self.spec.run_id

    @cached_property
    def record(self) -> RunRecord | None:
        """The record of a run that needs no more work."""
        return finished(self.run_dir)

    @property
    def state(self) -> str:
        """done, diverged, running (another process holds it), cut (begun and not finished) or missing."""
        if self.record is not None:
            return "done" if self.record.status == "complete" else self.record.status
        if not (self.run_dir / "spec.json").exists():
            return "missing"
        try:
            with FileLock(self.run_dir / "lock", timeout=0):
                return "cut"
        except Timeout:
            return "running"


def jobs(
    suite_name: str,
    *,
    design_names: Sequence[str] | None = None,
    n_layers: Sequence[int] | None = None,
    lrs: Sequence[float] | Literal["best"] | None = None,
    seeds: Sequence[int] | None = None,
    tokens_per_param: float | None = None,
    runs: Path = RUNS,
) -> list[Job]:
    """The runs of a suite that the filters keep, seeds slowest and depth fastest.

    `lrs` and `seeds` replace the suite's grids; `lrs="best"` takes for each design and depth the best rate that the
    recorded runs of this suite and budget show (`sweeps.rate_for`). `tokens_per_param` scales the token budget (counted
    on the suite's base shape, so that every run of the suite sees the same number of tokens). Raises ValueError naming
    what the suite has.
    """
    suite = find_suite(suite_name)
    chosen = [designs.get(name).name for name in design_names or designs.names()]
    depths = [shape.n_layers for shape in suite.shapes]
    if missing := [depth for depth in n_layers or () if depth not in depths]:
        raise ValueError(f"suite {suite.name!r} has no depth {missing}; its depths: {depths}")
    recipe: dict[str, Any] = {key: value for key, value in suite.recipe.items() if key in SPEC_FIELDS}
    n_tokens = suite.recipe["n_tokens"]
    if tokens_per_param is not None:
        n_tokens = round(tokens_per_param * suite.base.num_params().total)
    best = swept(suite_name, tokens_per_param) if lrs == "best" else None

    def rates(name: str, depth: int) -> Sequence[float]:
        if best is not None:
            return (rate_for(best, name, depth),)
        return cast(Sequence[float], lrs) or suite.lrs(name)

    def job(name: str, depth: int, lr: float, seed: int) -> Job:
        shape = suite.shape(depth, name)
        spec = TrainSpec(design=name, shape=shape, lr=lr, seed=seed, n_tokens=n_tokens, **recipe)
        return Job(suite.name, spec, runs)

    by_rate = [(name, depth, lr) for name in chosen for depth in n_layers or depths for lr in rates(name, depth)]
    if lrs != "best":
        by_rate.sort(key=lambda cell: (chosen.index(cell[0]), cell[2]))
    return [job(*cell, seed) for seed in seeds or suite.recipe.get("seeds", (0,)) for cell in by_rate]


def swept(suite_name: str, tokens_per_param: float | None = None) -> pd.DataFrame:
    """The best rate of each design and shape on record for a suite at its recipe (`sweeps.best_rates`).

    A suite that takes its rates from another (`lrs_from`) is judged by that one's runs, at that one's budget.
    """
    suite = find_suite(suite_name)
    if other := suite.recipe.get("lrs_from"):
        return swept(other)
    (any_job, *_) = jobs(suite_name, design_names=["pre_ln"], lrs=[1.0], seeds=[0], tokens_per_param=tokens_per_param)
    runs = load_runs()
    same = (runs.suite == suite_name) & (runs.kind == "measured")
    return best_rates(runs[same & (runs.recipe == recipe_key(any_job.spec.resolved()))])


def find_suite(name: str) -> Suite:
    """A suite by name; raises ValueError naming those there are."""
    if name not in SUITES:
        raise ValueError(f"unknown suite {name!r}; suites: {', '.join(SUITES)}")
    return SUITES[name]


def seconds(job: Job, measured: pd.DataFrame) -> tuple[float, bool]:
    """Estimated training seconds of a run on one worker, and whether a measured run of its kind backs it."""
    tokens = job.spec.n_steps * job.spec.global_batch_tokens
    shape = job.spec.shape
    kin = measured[(measured.design == job.spec.design) & (measured.vocab_size == shape.vocab_size)]
    same = kin[(kin.n_layers == shape.n_layers) & (kin.d_model == shape.d_model)]
    if len(same):
        return tokens / float(same.tokens_per_s.median()), True
    flops_per_token = 6 * shape.num_params(job.spec.design, **job.spec.options).total
    if len(kin):  # the nearest depth of the same design: its attained rate, not its speed
        gap = np.abs(np.log(kin.n_layers.astype(float) / shape.n_layers))
        near = kin[gap == gap.min()]
        return flops_per_token * tokens / float((6 * near.params_total * near.tokens_per_s).median()), False
    return flops_per_token * tokens / ROUGH_FLOP_PER_S, False


def plan_frame(todo: Sequence[Job]) -> pd.DataFrame:
    """One row a run: state, shape, parameters, tokens, estimated seconds, and what is known of its result."""
    measured = load_runs()
    rows = []
    for job in todo:
        estimate, backed = seconds(job, measured)
        record = job.record
        rows.append(
            {
                "run_id": job.spec.run_id,
                "state": job.state,
                "design": job.spec.design,
                "n_layers": job.spec.shape.n_layers,
                "d_model": job.spec.shape.d_model,
                "params": job.spec.shape.num_params(job.spec.design, **job.spec.options).total,
                "tokens": job.spec.n_steps * job.spec.global_batch_tokens,
                "lr": job.spec.lr,
                "seed": job.spec.seed,
                "seconds": round(record.wall_s if record else estimate),
                "from": "this run" if record else "measured" if backed else "rough",
                "val_loss": round(record.val_loss.mean, 4) if record and record.val_loss else None,
            }
        )
    return pd.DataFrame(rows)
