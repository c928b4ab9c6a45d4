"""Is one cell better than another, beyond the noise of the seeds? Welch's difference of means, and two tables of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pandas as pd
from scipy.stats import t as student

from depthbench.comparison.cells import best_of_one_recipe

NO_SEEDS = "one seed: cannot tell"


class Verdict(NamedTuple):
    """A gap between two cells in nats, how sure it is over seeds (NaN below two a side), and what may be said of it."""

    gap_nats: float
    gap_se: float
    half_width: float
    freedom: float
    verdict: str


def verdict(mean: float, sd: float, n: int, base_mean: float, base_sd: float, base_n: int) -> Verdict:
    """Gap to the baseline (nats), its standard error and 95 % half-width over seeds, and what may be said of it.

    Welch's difference of means: with the cells' own variances v = sd^2 / n, the half-width is Student's t at
    (v1 + v2)^2 / (v1^2 / (n1 - 1) + v2^2 / (n2 - 1)) degrees of freedom (Welch-Satterthwaite), rounded down.
    """
    gap = mean - base_mean
    if not n or not base_n:
        text = "no baseline row at this depth" if n else "no complete run"
        return Verdict(math.nan, math.nan, math.nan, math.nan, text)
    if n < 2 or base_n < 2:
        return Verdict(gap, math.nan, math.nan, math.nan, NO_SEEDS)
    here, there = sd**2 / n, base_sd**2 / base_n
    error, freedom = math.sqrt(here + there), min(n, base_n) - 1  # never fewer than the smaller side's
    if error:
        welch = (here + there) ** 2 / (here**2 / (n - 1) + there**2 / (base_n - 1))
        freedom = max(freedom, math.floor(welch))
    half = float(student.ppf(0.975, freedom)) * error
    if abs(gap) <= half:
        text = "within the noise of the seeds"
    else:
        text = f"{'lower' if gap < 0 else 'higher'}, beyond the noise of the seeds"
    return Verdict(gap, error, half, freedom, text)


def against_baseline(frame: pd.DataFrame, baseline: str = "pre_ln") -> pd.DataFrame:
    """The best cell of each design and shape of ONE recipe beside the baseline at the same depth and budget.

    Where a suite counts a design's own parameters, the same depth is not the same width. Raises ValueError if the frame
    mixes recipes, which must never be compared.
    """
    shown = best_of_one_recipe(frame)
    base: dict[Any, Any] = {}
    others: list[Any] = []
    for row in shown.itertuples():
        if row.design == baseline:
            base[row.n_layers] = row
        else:
            others.append(row)
    out = []
    for row in others:
        other = base.get(row.n_layers)
        stats = (other.mean, other.sd, other.n) if other else (math.nan, math.nan, 0)
        place = {"design": row.design, "n_layers": row.n_layers, "d_model": row.d_model}
        told = verdict(row.mean, row.sd, row.n, *stats)._asdict()
        out.append(place | told | {"n": row.n, "n_baseline": stats[2]})
    columns = ["design", "n_layers", "d_model", "n", "n_baseline", *Verdict._fields]
    return pd.DataFrame(out, columns=columns)


def across_depth(frame: pd.DataFrame) -> pd.DataFrame:
    """Each design's deepest best cell beside its shallowest, of ONE recipe: does depth pay, and can one tell?

    A negative `gap_nats` says that the deep shape is better. Raises ValueError if the frame mixes recipes.
    """
    out = []
    for design, line in best_of_one_recipe(frame).groupby("design", sort=False):
        if len(line) < 2:
            continue
        rows: list[Any] = list(line.sort_values("n_layers").itertuples())
        first, last = rows[0], rows[-1]
        told = verdict(last.mean, last.sd, last.n, first.mean, first.sd, first.n)._asdict()
        place = {"design": design, "n_layers_from": first.n_layers, "n_layers_to": last.n_layers}
        out.append(place | told | {"n_from": first.n, "n_to": last.n})
    columns = ["design", "n_layers_from", "n_layers_to", "n_from", "n_to", *Verdict._fields]
    return pd.DataFrame(out, columns=columns)
