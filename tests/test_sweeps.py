"""The choice of a learning rate: shared seeds, failures, edges, and the rate that other depths take."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from depthbench.sweeps import best_rates, rate_for


def rows(design: str, n_layers: int, by_rate: dict[float, list[float | None]]) -> list[dict[str, Any]]:
    """One run a value, seeds from 0 up; None is a run that diverged."""
    return [
        {
            "design": design,
            "n_layers": n_layers,
            "d_model": 8,
            "lr": lr,
            "seed": seed,
            "status": "complete" if loss is not None else "diverged",
            "val_loss_nats": loss,
        }
        for lr, losses in by_rate.items()
        for seed, loss in enumerate(losses)
    ]


def best(*parts: list[dict[str, Any]]) -> pd.DataFrame:
    return best_rates(pd.DataFrame([row for part in parts for row in part]))


def test_rates_are_compared_over_the_seeds_they_share() -> None:
    # Later seeds of the chosen rate are worse; over all seeds the other rate would win.
    (row,) = best(rows("hc", 4, {1e-3: [3.0, 3.4, 3.4], 2e-3: [3.1], 4e-3: [3.2]})).to_dict("records")
    assert (row["lr"], row["loss"], row["n_seeds"], row["n_rates"]) == (1e-3, 3.0, 1, 3)
    assert row["ahead"] == pytest.approx(0.1) and row["edge"] == "low" and row["rates"] == (1e-3, 2e-3, 4e-3)


def test_a_failed_seed_costs_a_rate_the_choice() -> None:
    (row,) = best(rows("hc", 4, {1e-3: [3.1, 3.1], 2e-3: [2.5, None], 4e-3: [3.2, 3.2]})).to_dict("records")
    assert (row["lr"], row["n_failed"], row["edge"]) == (1e-3, 0, "low")
    (row,) = best(rows("hc", 4, {1e-3: [None], 2e-3: [2.5, None]})).to_dict("records")
    assert (row["lr"], row["n_failed"]) == (2e-3, 1), "unless no rate is left without one"
    assert best(rows("hc", 4, {1e-3: [None]})).empty


def test_edges() -> None:
    edges = {}
    for middle in (2.9, 3.15, 3.05):
        frame = best(rows("hc", 4, {1e-3: [3.1], 2e-3: [middle], 4e-3: [3.0]}))
        edges[middle] = frame["edge"].item()
    assert edges == {2.9: "", 3.15: "high", 3.05: "high"}
    one = best(rows("hc", 4, {1e-3: [3.0]}))
    assert one["edge"].item() == "" and math.isnan(one["ahead"].item()), "one rate is no sweep and has no edge"


def test_the_rate_of_a_depth_is_its_own_or_of_the_nearest_sweep() -> None:
    frame = best(
        rows("hc", 4, {1e-3: [3.0], 2e-3: [3.1]}),
        rows("hc", 16, {1e-3: [3.1], 2e-3: [3.0]}),
        rows("hc", 8, {9e-3: [2.0]}),
    )
    assert [rate_for(frame, "hc", depth) for depth in (2, 4, 7, 16, 70)] == [1e-3, 1e-3, 1e-3, 2e-3, 2e-3]
    assert rate_for(frame, "hc", 8) in (1e-3, 2e-3), "one rate at a depth is no sweep"
    with pytest.raises(ValueError, match=r"no learning-rate sweep of 'moda'.*--lr RATE"):
        rate_for(frame, "moda", 4)
