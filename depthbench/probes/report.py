"""The depth report card: what the probes of one model found, in words that follow from the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from depthbench.probes.late import THRESHOLDS, first_late_layer, joined, score_of, share_above
from depthbench.probes.mixing import dead_layers
from depthbench.probes.results import ProbeResult

NEEDED_NATS = 0.01  # a layer is counted as needed where the loss rises by more without it
DEAD_BELOW = 0.05


@dataclass(frozen=True)
class Question:
    """One line of the card: a number read off the mean of an array."""

    asks: str
    measure: str
    probe: str
    array: str
    of: Callable[[np.ndarray], Any]
    unit: str = ""


def adjacent_late(d: np.ndarray) -> float:
    """Mean of d(l, l + 1) over the late layers."""
    steps = np.diagonal(d, 1)
    return float(steps[first_late_layer(len(steps)) :].mean())


def agreed_after(top1: np.ndarray) -> float:
    """Layers until the lens `close` (row 0) names the final token in half of the places, and goes on to."""
    below = np.flatnonzero(top1[0] < 0.5)
    return float(below[-1] + 1) if len(below) else 0.0


def late_share(end: np.ndarray) -> float:
    """Share of the end that the sublayers of the late layers wrote."""
    n_layers = (len(end) - 1) // 2
    return float(end[1 + 2 * first_late_layer(n_layers) :].sum())


QUESTIONS = (
    Question(
        "Do late layers turn the state?",
        "mean angle to the next layer",
        "angular_distance",
        "all_tokens",
        adjacent_late,
        "half turns",
    ),
    Question(
        "Do late layers lean on each other?",
        f"late pairs, causal score above {THRESHOLDS['causal']}",
        "causal_scores",
        "score",
        lambda mean: share_above(mean, THRESHOLDS["causal"]),
        "share",
    ),
    Question(
        "The same like for like, by branch outputs?",
        f"late pairs, branch score above {THRESHOLDS['causal']}",
        "causal_scores",
        "branch_score",
        lambda mean: share_above(mean, THRESHOLDS["causal"]),
        "share",
    ),
    Question(
        "Does the order of late layers matter?",
        f"late pairs, permutation score above {THRESHOLDS['permutation']}",
        "permutation_scores",
        "both",
        lambda both: share_above(score_of(both), THRESHOLDS["permutation"]),
        "share",
    ),
    Question(
        "Is every layer needed?",
        f"layers without which the loss rises by more than {NEEDED_NATS} nats",
        "layer_pruning",
        "loss_increase",
        lambda mean: float((mean > NEEDED_NATS).mean()),
        "share",
    ),
    Question(
        "When is the prediction there?",
        "layers until the lens agrees on half of the tokens",
        "logit_lens",
        "top1_agreement",
        agreed_after,
        "layers",
    ),
    Question(
        "Who wrote what the head reads?",
        "share of the end written by late layers",
        "branch_norms",
        "end_share",
        late_share,
        "share",
    ),
    Question(
        "Do early layers read what was just written?",
        f"leading layers with less than {DEAD_BELOW} on the running sum",
        "depth_mixing",
        "running_sum",
        lambda mean: float(dead_layers(mean[:-1], DEAD_BELOW)),
        "layers",
    ),
    Question(
        "Do the streams stay apart?",
        "effective rank of all residual maps composed",
        "residual_transport",
        "effective_rank",
        lambda mean: float(mean[-1]),
        "dimensions",
    ),
)


def report_card(results: Mapping[str, ProbeResult], step_0: Mapping[str, ProbeResult] | None = None) -> pd.DataFrame:
    """One row a question that the probes given can answer, by name of the probe.

    Columns: `question`, `measure`, `unit`, `value`, `low`, `high` (95 %, documents resampled; NaN where only means were
    kept), `step_0` (the untrained control; NaN without one), `verdict`: where the control lies beside the band.
    """
    rows = []
    for question in QUESTIONS:
        if question.probe not in results:
            continue
        result = _ready(results[question.probe], question)
        control = (step_0 or {}).get(question.probe)
        value = float(question.of(result[question.array]))
        low, high = _band(result, question)
        at_0 = math.nan if control is None else float(question.of(_ready(control, question)[question.array]))
        rows.append(
            {
                "question": question.asks,
                "measure": question.measure,
                "unit": question.unit,
                "value": value,
                "low": low,
                "high": high,
                "step_0": at_0,
                "verdict": verdict(value, low, high, at_0),
            }
        )
    return pd.DataFrame(rows, columns=["question", "measure", "unit", "value", "low", "high", "step_0", "verdict"])


def verdict(value: float, low: float, high: float, step_0: float) -> str:
    """Training raised or lowered a number if the untrained model's lies outside its band; else nothing is claimed."""
    if math.isnan(step_0):
        return "no control: cannot tell"
    if math.isnan(low):
        return "no band: cannot tell"
    if step_0 < low:
        return "raised by training"
    if step_0 > high:
        return "lowered by training"
    return "not told from step 0"


def summary(card: pd.DataFrame) -> str:
    """The card in a sentence; claims nothing that a row does not."""
    if card.empty:
        return "No probe was run."
    counts = card["verdict"].value_counts()
    return f"Of {len(card)} measures: " + "; ".join(f"{n} {words}" for words, n in counts.items()) + "."


def _ready(result: ProbeResult, question: Question) -> ProbeResult:
    return joined(result) if question.array == "both" else result


def _band(result: ProbeResult, question: Question) -> tuple[float, float]:
    if len(result.by_document[question.array]) < 2:
        return math.nan, math.nan
    low, high = result.bootstrap(question.array, question.of)
    return float(low), float(high)
