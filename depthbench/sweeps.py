"""Which learning rate is best, where, and could a better one lie outside the grid?

A sweep is a set of runs that differ in the rate alone (and in seeds). The paper compares designs at the best rate of
each, so this choice comes before every comparison.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd

# What fixes a sweep besides the recipe; columns that a frame lacks are left out.
PLACE = ("design", "options", "n_layers", "d_model", "d_ff")
COLUMNS = ("lr", "loss", "n_rates", "rates", "n_seeds", "n_failed", "ahead", "edge")  # beside those of PLACE


def finished(runs: pd.DataFrame) -> pd.Series:
    """Which runs are complete and have a finite validation loss."""
    return (runs["status"] == "complete") & np.isfinite(runs["val_loss_nats"].astype(float))


def best_rates(runs: pd.DataFrame) -> pd.DataFrame:
    """The best learning rate of every design and shape of ONE recipe, one row each, from a frame of `load_runs`.

    Best is the lowest mean validation loss (`loss`, nats) over the seeds that every rate was run with, `n_seeds` of
    them (over all seeds of each where none is shared), among the rates with the fewest runs that did not complete: a
    rate at which some seeds diverge does not win by the ones that were left. `ahead` is by how many nats it leads the
    next, NaN for one rate; `edge` is "low" or "high" where the best is the lowest or highest of two or more rates that
    were tried, so that the sweep should go on. A place with no complete run has no row.
    """
    place = [column for column in PLACE if column in runs]
    out: list[dict[str, Any]] = []
    for key, group in runs.groupby(place, sort=False, dropna=False):
        by_rate = {float(str(rate)): own for rate, own in group.groupby("lr")}
        shared = set.intersection(*(set(own["seed"]) for own in by_rate.values()))
        table = []
        for rate, own in by_rate.items():
            judged = own[own["seed"].isin(shared)] if shared else own
            done = finished(judged)
            if done.any():
                table.append(((~finished(own)).sum(), float(judged["val_loss_nats"][done].astype(float).mean()), rate))
        if not table:
            continue
        table.sort()
        failed, loss, rate = table[0]
        row: dict[Any, Any] = dict(zip(place, key, strict=True))
        row |= {
            "lr": rate,
            "loss": loss,
            "n_rates": len(by_rate),
            "rates": tuple(sorted(by_rate)),
            "n_seeds": len(shared),
            "n_failed": int(failed),
            "ahead": table[1][1] - loss if len(table) > 1 else float("nan"),
            "edge": _edge(rate, sorted(by_rate)),
        }
        out.append(row)
    return pd.DataFrame(out, columns=[*place, *COLUMNS])


def _edge(rate: float, rates: list[float]) -> Literal["", "low", "high"]:
    if len(rates) < 2 or rate not in (rates[0], rates[-1]):
        return ""
    return "low" if rate == rates[0] else "high"


def rate_for(best: pd.DataFrame, design: str, n_layers: int) -> float:
    """The rate for a design at a depth: of its own sweep there, else of the swept depth nearest in log n_layers.

    `best` is what `best_rates` gives; a place with one rate only is no sweep. Raises ValueError naming what to run
    where the design has no sweep.
    """
    swept = best[(best["design"] == design) & (best["n_rates"] > 1)]
    if swept.empty:
        raise ValueError(
            f"no learning-rate sweep of {design!r} is on record, so there is no best rate; run the suite at one depth "
            "without --lr first (it tries the suite's rates), or give --lr RATE"
        )
    gap = np.abs(np.log(swept["n_layers"].to_numpy(float) / n_layers))
    return float(swept["lr"].iloc[int(gap.argmin())])
