"""What the paper says of each design, what our rows show, and whether the two agree: computed, never typed.

The paper gives one run a point, so its side has a sign and the error of reading a chart, and no noise of seeds. Our
side has an interval over seeds. They agree where ours is beyond that noise on the same side, disagree where it is
beyond on the other side, and where it is not, one cannot tell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd

from depthbench import published
from depthbench.comparison.slopes import slopes, slopes_against, weights

AGREES, DISAGREES, UNKNOWN = "agrees", "disagrees", "cannot tell"


class Reading(NamedTuple):
    """A published slope and how far the reading of its points can move it, nats a doubling of the aspect ratio."""

    slope: float
    error: float

    @property
    def sign(self) -> int:
        """1 where deeper is better, -1 where worse, 0 where the reading cannot tell."""
        return 0 if abs(self.slope) <= self.error else (1 if self.slope > 0 else -1)


def published_slope(design: str, table: str = "val_loss_400m", baseline: str | None = None) -> Reading | None:
    """The slope of a published curve, or how far it is above the baseline's over the depths both have.

    None where the table has fewer than two points of it. `error` is the reading of every point off by as much as a
    chart can be read to, each to the worse side.
    """
    curve = published.table(table)
    line = curve[curve["design"] == design].sort_values("n_layers")
    reading = float(published.about(table)["uncertainty"] or 0)
    if baseline is not None:
        base = curve[curve["design"] == baseline].set_index("n_layers")["value"]
        line = line[line["n_layers"].isin(base.index)]
        line = line.assign(value=line["value"].to_numpy() - base[line["n_layers"]].to_numpy())
        reading *= 2
    if len(line) < 2:
        return None
    w = weights(line["aspect_ratio"].to_list())
    return Reading(float(w @ line["value"].to_numpy(float)), reading * float(abs(w).sum()))


def agreement(frame: pd.DataFrame, table: str = "val_loss_400m", baseline: str = "pre_ln") -> pd.DataFrame:
    """One row for each design and question, from cells of ONE recipe; see the module for the rule.

    The questions: does the loss fall with depth, and does depth pay more than in the baseline? Columns: design,
    question, published (slope), published_error, measured, half_width, n_shapes, n_runs, verdict.
    """
    name = published.labels().get(baseline, baseline)
    questions = (
        ("deeper is better", slopes(frame), None),
        (f"depth pays more than in {name}", slopes_against(frame, baseline), baseline),
    )
    out = [
        _row(row, question, published_slope(str(row.design), table, beside))
        for question, measured, beside in questions
        for row in measured.itertuples()
    ]
    columns = ["design", "question", "published", "published_error", "measured", "half_width", "n_shapes", "n_runs"]
    return pd.DataFrame(out, columns=[*columns, "verdict"])


def _row(row: Any, question: str, theirs: Reading | None) -> dict[str, Any]:
    if theirs is None or not theirs.sign or not row.freedom or abs(row.slope) <= row.half_width:
        verdict = UNKNOWN
    else:
        verdict = AGREES if (row.slope > 0) == (theirs.sign > 0) else DISAGREES
    return {
        "design": row.design,
        "question": question,
        "published": theirs.slope if theirs else float("nan"),
        "published_error": theirs.error if theirs else float("nan"),
        "measured": row.slope,
        "half_width": row.half_width,
        "n_shapes": row.n_shapes,
        "n_runs": row.n_runs,
        "verdict": verdict,
    }
