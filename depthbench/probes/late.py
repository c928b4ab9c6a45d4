"""How many late pairs of layers matter? The share of scores above a threshold, for every threshold.

The paper counts pairs "in the last three quarters" above 0.45 (causal) and 0.15 (permutation) and gives no code. The
rule here: both layers have index >= L / 4, counted from 0, and the first is before the second; 276 pairs at L = 32.
Thresholds are a choice, so the whole survival curve is drawn beside the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from depthbench.probes.results import ProbeResult

THRESHOLDS = {"causal": 0.45, "permutation": 0.15}


def permutation_score(result: ProbeResult) -> np.ndarray:
    """The paper's P(a, b) = |L_swap - L| / L of the losses over all text, (L, L), NaN for a >= b."""
    loss = result["loss"]
    return np.asarray(np.abs(result["swapped_loss"] - loss) / loss)


def first_late_layer(n_layers: int) -> int:
    """The first layer, from 0, of the last three quarters."""
    return math.ceil(n_layers / 4)


def late_scores(scores: np.ndarray) -> np.ndarray:
    """The scores (pairs,) of the late pairs of a matrix (L, L), read above its diagonal.

    Raises ValueError where a late pair has no score.
    """
    n, first = len(scores), first_late_layer(len(scores))
    rows, columns = np.triu_indices(n, 1)
    late = scores[rows, columns][rows >= first]
    if np.isnan(late).any():
        raise ValueError(f"{np.isnan(late).sum()} of {len(late)} late pairs have no score")
    return late


def survival(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds, ascending from 0, and the share of late pairs above each: every step of the curve.

    A share is that of scores strictly greater.
    """
    late = np.sort(late_scores(scores))
    thresholds = np.concatenate([[0.0], late])
    return thresholds, np.array([(late > t).mean() for t in thresholds])


def share_above(scores: np.ndarray, threshold: float) -> float:
    """The share of late pairs whose score is greater than a threshold."""
    return float((late_scores(scores) > threshold).mean())


def late_table(
    causal: Mapping[str, ProbeResult], permutation: Mapping[str, ProbeResult], *, n: int = 1000
) -> pd.DataFrame:
    """The paper's table of late pairs: one row a name and score, with the band over documents.

    Columns: `name`, `score` (causal, causal of branch outputs, permutation), `threshold`, `share`, `low`, `high` (95 %
    interval, documents resampled; NaN for one document), `n_pairs`.
    """
    rows = []
    for name, result in causal.items():
        for array, score in (("score", "causal"), ("branch_score", "causal, branch outputs")):
            rows.append(_row(name, score, THRESHOLDS["causal"], result, array, n))
    for name, result in permutation.items():
        rows.append(_row(name, "permutation", THRESHOLDS["permutation"], result, None, n))
    return pd.DataFrame(rows)


def _row(name: str, score: str, threshold: float, result: ProbeResult, array: str | None, n: int) -> dict[str, object]:
    if array is None:
        scores = permutation_score(result)
        low, high = _band(joined(result), "both", lambda both: share_above(score_of(both), threshold), n)
    else:
        scores = result[array]
        low, high = _band(result, array, lambda mean: share_above(mean, threshold), n)
    return {
        "name": name,
        "score": score,
        "threshold": threshold,
        "share": share_above(scores, threshold),
        "low": low,
        "high": high,
        "n_pairs": len(late_scores(scores)),
    }


def _band(result: ProbeResult, array: str, statistic: object, n: int) -> tuple[float, float]:
    if result.n_documents < 2:
        return math.nan, math.nan
    low, high = result.bootstrap(array, statistic, n=n)  # type: ignore[arg-type]
    return float(low), float(high)


def joined(result: ProbeResult) -> ProbeResult:
    """Loss and swapped losses as one array, since both must be resampled together."""
    after, loss = result.by_document["swapped_loss"], result.by_document["loss"]
    both = np.stack([after, np.broadcast_to(loss[:, None, None], after.shape)], 1)  # (documents, 2, L, L)
    return ProbeResult(result.probe, {"both": both}, {"both": ()}, {}, {}, {})


def score_of(both: np.ndarray) -> np.ndarray:
    """P of what `joined` holds."""
    return np.asarray(np.abs(both[0] - both[1]) / both[1])
