"""`--check`: a run beside the committed seeds of its cell."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from depthbench.records import RunRecord, ValLoss, flatten
from launch.check import compare
from launch.grid import Job, jobs
from tests.test_records import record


def made(job: Job, loss: float, seed: int) -> RunRecord:
    spec = job.spec
    recipe = {**spec.resolved(), "seed": seed}
    val = ValLoss(mean=loss, se=0.01, n_tokens=100, n_documents=3, bits_per_byte=None)
    return record(
        run_id=f"{spec.design}-{spec.shape.n_layers}-{seed}",
        design=spec.design,
        shape=spec.shape.model_dump(),
        recipe=recipe,
        val_loss=val,
    )


def rows(cells: dict[int, list[float]], runs: Path) -> pd.DataFrame:
    by_depth = {
        n: jobs("pocket", design_names=["hc"], n_layers=[n], lrs=[5e-3], seeds=[0], runs=runs)[0] for n in cells
    }
    return pd.DataFrame(
        flatten(made(by_depth[n], loss, seed), "committed")
        for n, losses in cells.items()
        for seed, loss in enumerate(losses)
    )


def answer(loss: float, seed: int, committed: pd.DataFrame, runs: Path):  # type: ignore[no-untyped-def]
    (job,) = jobs("pocket", design_names=["hc"], n_layers=[16], lrs=[5e-3], seeds=[0], runs=runs)
    job.__dict__["record"] = made(job, loss, seed)
    fake = Job(job.suite, job.spec.model_copy(update={"seed": seed}), runs)
    fake.__dict__["record"] = job.__dict__["record"]
    (found,) = compare([fake], committed)
    return found


def test_the_band_is_for_one_more_seed_with_the_spread_pooled_over_shapes(tmp_path: Path) -> None:
    committed = rows({16: [3.0, 3.2], 4: [2.0, 2.0, 2.0]}, tmp_path)
    # Sums of squares 0.02 and 0 over 1 + 2 degrees of freedom; Student's 97.5 % quantile at 3 is 3.18245.
    half = 3.18245 * math.sqrt(0.02 / 3) * math.sqrt(1 + 1 / 2)
    inside, outside = (answer(3.1 + offset, 9, committed, tmp_path) for offset in (half - 1e-4, half + 1e-4))
    assert inside.inside and not outside.inside and inside.n == 2
    assert inside.half_width == pytest.approx(half, rel=1e-5) and inside.mean == pytest.approx(3.1)
    assert "inside the 95% band" in str(inside) and "OUTSIDE" in str(outside)


def test_the_run_itself_is_no_evidence_for_itself(tmp_path: Path) -> None:
    committed = rows({16: [3.0, 3.2, 3.1], 4: [2.0, 2.1]}, tmp_path)
    found = answer(3.0, 0, committed, tmp_path)
    assert found.n == 2 and found.mean == pytest.approx(3.15) and found.committed_loss == 3.0
    assert "the committed row of this very run says 3.0000" in str(found)


def test_nothing_is_claimed_without_seeds_or_across_recipes(tmp_path: Path) -> None:
    one = answer(3.0, 9, rows({16: [3.0]}, tmp_path), tmp_path)
    assert one.inside is None and "no band" in str(one)
    other = rows({16: [3.0, 3.2, 3.1]}, tmp_path).assign(recipe="other")
    assert answer(3.0, 9, other, tmp_path).inside is None
    (job,) = jobs("pocket", design_names=["hc"], n_layers=[16], lrs=[5e-3], seeds=[0], runs=tmp_path)
    assert "nothing to compare" in str(compare([job], other)[0])
