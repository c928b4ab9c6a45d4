"""Does depth pay, all shapes taken together? The slope of the loss in the logarithm of the aspect ratio.

The slope is the least-squares line through a design's cell means, a weighted sum of them,

    b = sum_i w_i m_i,   w_i = (x_i - xbar) / sum_k (x_k - xbar)^2,   x_i = log2(d_model / n_layers) of cell i

in nats for each doubling of the aspect ratio: positive where deep and narrow is better. Its standard error is that of
the seeds alone, s sqrt(sum_i w_i^2 / n_i), with the variance s^2 pooled over the design's cells. So the interval asks
whether other seeds would turn the slope at these shapes; it does not ask whether the points lie on a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from depthbench.comparison.cells import best_of_one_recipe
from depthbench.comparison.gaps import NO_SEEDS

COLUMNS = ["design", "n_shapes", "n_runs", "slope", "se", "freedom", "half_width", "sd", "verdict"]


class Slope(NamedTuple):
    """A slope in nats a doubling of the aspect ratio, its standard error over seeds, df, pooled sd."""

    slope: float
    se: float
    freedom: float
    sd: float


def weights(aspect_ratios: Sequence[float]) -> np.ndarray:
    """w_i of the least-squares slope in log2 of the aspect ratio; raises ValueError below two different ones."""
    x = np.log2(np.asarray(aspect_ratios, dtype=float))
    spread = x - x.mean()
    if not (total := float((spread**2).sum())):
        raise ValueError("a slope needs two shapes of different aspect ratio")
    return spread / total


def slope(means: Sequence[float], sds: Sequence[float], ns: Sequence[float], aspect_ratios: Sequence[float]) -> Slope:
    """The slope through cell means (nats) with standard deviations `sds` over `ns` seeds.

    With one seed in any cell the noise is not known, whatever the others say: se NaN, no degrees of freedom.
    """
    w, n = weights(aspect_ratios), np.asarray(ns, dtype=float)
    freedom = float((n - 1).sum())
    value = float(w @ np.asarray(means, dtype=float))
    if n.min() < 2:
        return Slope(value, math.nan, 0.0, math.nan)
    sd = math.sqrt(float(((n - 1) * np.asarray(sds, dtype=float) ** 2).sum()) / freedom)
    return Slope(value, sd * math.sqrt(float((w**2 / n).sum())), freedom, sd)


def difference(one: Slope, other: Slope) -> Slope:
    """How much steeper `one` is; the degrees of freedom are Welch and Satterthwaite's, rounded down."""
    if not one.freedom or not other.freedom:
        return Slope(one.slope - other.slope, math.nan, 0.0, math.nan)
    here, there = one.se**2, other.se**2
    freedom = min(one.freedom, other.freedom)
    if here + there:
        freedom = max(freedom, math.floor((here + there) ** 2 / (here**2 / one.freedom + there**2 / other.freedom)))
    return Slope(one.slope - other.slope, math.sqrt(here + there), float(freedom), math.nan)


def slopes(frame: pd.DataFrame) -> pd.DataFrame:
    """The slope of each design with two shapes or more, from cells at their best rate, of ONE recipe.

    Columns: design, n_shapes, n_runs, slope, se, freedom, half_width (95 %), sd (pooled over the cells), verdict.
    """
    out = []
    for design, line in best_of_one_recipe(frame).groupby("design", sort=False):
        if line["aspect_ratio"].nunique() > 1:
            words = ("deeper is better", "deeper is worse")
            out.append(_row(str(design), line, _of(line), words))
    return pd.DataFrame(out, columns=COLUMNS)


def slopes_against(frame: pd.DataFrame, baseline: str = "pre_ln") -> pd.DataFrame:
    """How far each design's slope is above the baseline's over the depths that both have; columns as of `slopes`."""
    best = best_of_one_recipe(frame)
    base = best[best["design"] == baseline]
    out = []
    for design, line in best[best["design"] != baseline].groupby("design", sort=False):
        shared = sorted(set(line["n_layers"]) & set(base["n_layers"]))
        if len(shared) < 2:
            continue
        own, theirs = (rows[rows["n_layers"].isin(shared)] for rows in (line, base))
        words = ("gains more from depth", "gains less from depth")
        out.append(_row(str(design), own, difference(_of(own), _of(theirs)), words))
    return pd.DataFrame(out, columns=COLUMNS)


def _of(line: pd.DataFrame) -> Slope:
    means, sds, ns, aspects = (line[column].astype(float).to_list() for column in ("mean", "sd", "n", "aspect_ratio"))
    return slope(means, sds, ns, aspects)


def _row(design: str, line: pd.DataFrame, found: Slope, words: tuple[str, str]) -> dict[str, Any]:
    half = float(student.ppf(0.975, found.freedom)) * found.se if found.freedom else math.nan
    if not found.freedom:
        told = NO_SEEDS
    elif abs(found.slope) <= half:
        told = "within the noise of the seeds"
    else:
        told = f"{words[0] if found.slope > 0 else words[1]}, beyond the noise of the seeds"
    counts = {"n_shapes": len(line), "n_runs": int(line["n"].sum())}
    return {"design": design} | counts | found._asdict() | {"half_width": half, "verdict": told}
