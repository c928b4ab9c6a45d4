"""A cell is one design, shape, rate and recipe: nothing else enters its mean."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from depthbench import figures
from depthbench.comparison import across_depth, against_baseline, cells, recipes
from tests.comparison.rows import run_row


def test_cells_keep_recipes_apart_and_failed_runs_out_of_the_mean() -> None:
    rows = pd.DataFrame(
        [
            run_row(seed=0, val_loss_nats=3.0),
            run_row(seed=1, val_loss_nats=3.2),
            run_row(seed=2, status="diverged", val_loss_nats=None, n_tokens=1000, steps=5),
            run_row(n_tokens=8_000_000, val_loss_nats=2.0),
            run_row(lr=1e-3, val_loss_nats=2.9),
            run_row(design="hc", status="diverged", val_loss_nats=None, n_tokens=1000, steps=5),
            run_row(suite="main-400m", val_loss_nats=9.0),
            run_row(kind="smoke", val_loss_nats=9.0),
        ]
    )
    frame = cells(rows, suite="pocket")
    assert sorted(frame["mean"].dropna()) == pytest.approx([2.0, 2.9, 3.1])
    cell = frame[frame["n"] == 2].iloc[0]
    assert cell["sd"] == pytest.approx(0.2 / math.sqrt(2)) and cell["n_failed"] == 1 and not cell["best"]
    assert frame[frame["mean"] == 2.9]["best"].all() and (frame[frame["n"] == 1]["sd"].isna()).all()
    lost = frame[frame["design"] == "hc"].iloc[0]
    assert lost["n"] == 0 and lost["n_failed"] == 1 and "diverged at step 5" in lost["failed"][0]
    found = recipes(frame)
    assert [len(group) for _, group in found] == [2, 1] and "4,000,000 tokens" in found[0][0]
    for compare in (against_baseline, across_depth):
        with pytest.raises(ValueError, match="mixes recipes"):
            compare(frame)
    assert len(cells(rows[:0], suite="pocket")) == 0


def test_best_learning_rate_is_the_rule_of_the_printed_figure() -> None:
    rows = [
        run_row(seed=seed, lr=lr, val_loss_nats=loss, status=status)
        for seed, lr, loss, status in [
            (0, 1e-3, 3.0, "complete"), (1, 1e-3, 3.1, "complete"),
            (0, 5e-3, 2.0, "complete"), (1, 5e-3, None, "diverged"),
            (0, 2e-3, 3.2, "complete"), (1, 2e-3, 3.3, "complete"),
        ]
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    best = cells(frame, suite="pocket").query("best")
    assert list(best["lr"]) == [1e-3] == list(figures.at_best_lr(frame)["lr"].unique())
