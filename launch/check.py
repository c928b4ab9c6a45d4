"""Does a run made here fall where the committed runs of its cell do?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from scipy.stats import t as student

from depthbench.records import RunRecord, flatten, load_runs
from depthbench.sweeps import PLACE, finished
from launch.grid import Job

LEVEL = 0.95


@dataclass(frozen=True)
class Answer:
    """One run beside the committed runs of its cell; losses in nats. `inside` is None where nothing can be told."""

    run_id: str
    loss: float | None
    n: int
    mean: float
    half_width: float
    committed_loss: float | None
    inside: bool | None

    def __str__(self) -> str:
        if self.loss is None:
            return f"{self.run_id}: has no loss (not complete); nothing to compare"
        text = f"{self.run_id}: {self.loss:.4f}"
        if self.committed_loss is not None:
            text += f"; the committed row of this very run says {self.committed_loss:.4f}"
        if self.inside is None:
            return f"{text}; no band: it takes two committed seeds of some shape of this design, and one of this cell"
        low, high = self.mean - self.half_width, self.mean + self.half_width
        word = "inside" if self.inside else "OUTSIDE"
        return f"{text}; {word} the {LEVEL:.0%} band {low:.4f} to {high:.4f} of {self.n} other committed seed(s)"


def compare(jobs: Sequence[Job], committed: pd.DataFrame | None = None) -> list[Answer]:
    """Each job's record beside the committed rows of its design, shape, rate and recipe, other seeds only.

    The band is a prediction interval for one more seed: mean +- t s sqrt(1 + 1/n), s the standard deviation over seeds
    pooled over the cells of the design and recipe, t Student's quantile at its degrees of freedom.
    """
    rows = load_runs("committed") if committed is None else committed
    rows = rows[finished(rows) & (rows["kind"] == "measured")] if len(rows) else rows
    return [_answer(job, job.record, rows) for job in jobs]


def _answer(job: Job, record: RunRecord | None, rows: pd.DataFrame) -> Answer:
    nothing = Answer(job.spec.run_id, None, 0, math.nan, math.nan, None, None)
    if record is None or record.val_loss is None:
        return nothing
    own, loss = flatten(record, "local"), record.val_loss.mean
    kin = rows[(rows["design"] == own["design"]) & (rows["recipe"] == own["recipe"])]
    kin = kin[(kin["options"] == own["options"]) & (kin["data_sha256"] == own["data_sha256"])]
    same = kin[kin["run_id"] == own["run_id"]]["val_loss_nats"]
    kin = kin[kin["run_id"] != own["run_id"]]
    here = kin[(kin[[*PLACE, "lr"]] == pd.Series(own)[[*PLACE, "lr"]]).all(axis=1)]["val_loss_nats"].astype(float)
    by_cell = kin.groupby([*PLACE, "lr"])["val_loss_nats"]
    freedom = int((by_cell.size() - 1).sum())
    mean, half, inside = math.nan, math.nan, None
    if len(here) and freedom:
        spread = math.sqrt(float((by_cell.var(ddof=1).fillna(0) * (by_cell.size() - 1)).sum()) / freedom)
        mean = float(here.mean())
        half = float(student.ppf((1 + LEVEL) / 2, freedom)) * spread * math.sqrt(1 + 1 / len(here))
        inside = abs(loss - mean) <= half
    known = float(same.iloc[0]) if len(same) else None
    return Answer(job.spec.run_id, loss, len(here), mean, half, known, inside)
