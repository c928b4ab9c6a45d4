"""What do the runs of a grid say, cell by cell, and how sure is it?

A cell is a design at a shape with one learning rate, under one recipe. Runs of different recipes (tokens, batch,
sequence length, data, options) never share a cell. The spread of a cell is over seeds; the evaluation's standard error
says how well one model's loss was measured and nothing about another seed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import pandas as pd
from scipy.stats import t as student

from depthbench import published
from depthbench.sweeps import PLACE, best_rates

RECIPE = ("suite", "data_name", "data_sha256", "seq_len", "global_batch_tokens", "n_tokens", "recipe", "dtype")
SETTING = (*PLACE, "lr")
COLUMNS = [
    *RECIPE, *SETTING, "aspect_ratio", "params_total", "mean", "n", "sd", "se_eval", "n_failed", "failed", "run_ids",
    "n_lrs", "best",
]  # fmt: skip


def cells(runs: pd.DataFrame, *, suite: str, designs: Sequence[str] | None = None) -> pd.DataFrame:
    """One row a cell of a suite, from the frame of `load_runs`: mean (nats), n seeds, sd over seeds (NaN below two).

    `n_tokens` of a cell is what its complete runs trained on; runs that diverged or stopped never reached theirs, so
    they are counted in `n_failed` of every cell of their setting, and never averaged. `best` marks the learning rate of
    each design, shape and recipe (`sweeps.best_rates`). An empty frame gives an empty one.
    """
    rows = runs[(runs["suite"] == suite) & (runs["kind"] == "measured")]
    if designs is not None:
        rows = rows[rows["design"].isin(list(designs))]
    done = rows[(rows["status"] == "complete") & rows["val_loss_nats"].notna()]
    lost = rows.drop(done.index)
    out: list[dict[str, Any]] = []
    for key, group in done.groupby([*RECIPE, *SETTING], dropna=False, sort=True):
        out.append(_cell(key, group))
    meant = [c for c in (*RECIPE, *SETTING) if c != "n_tokens"]
    for key, group in lost.groupby(meant, dropna=False, sort=True):
        named = dict(zip(meant, key, strict=True))
        homes = [cell for cell in out if all(cell[c] == named[c] for c in meant)]
        if not homes:
            homes = [
                named | {"n_tokens": None, "mean": math.nan, "n": 0, "sd": math.nan, "se_eval": math.nan, "run_ids": ()}
            ]
            homes[0] |= {key: group[key].iloc[0] for key in ("aspect_ratio", "params_total")}
            out += homes
        for cell in homes:
            cell["n_failed"] = len(group)
            cell["failed"] = tuple(f"{r.run_id}: {r.status} at step {r.steps}" for r in group.itertuples())
    frame = pd.DataFrame(out, columns=COLUMNS)
    frame["n_failed"] = frame["n_failed"].fillna(0).astype(int)
    frame["failed"] = [value if isinstance(value, tuple) else () for value in frame["failed"]]
    place = [*RECIPE, *PLACE]
    frame["n_lrs"] = frame.groupby(place, dropna=False)["lr"].transform("nunique") if len(frame) else 0
    frame["best"] = False
    setting = pd.Series(list(frame[[*PLACE, "lr"]].itertuples(index=False, name=None)), frame.index, dtype=object)
    for _, group in done.groupby(list(RECIPE), dropna=False):
        like = group.iloc[0]
        judged = pd.concat([group, _alike(lost, like, [key for key in RECIPE if key != "n_tokens"])])
        best = set(best_rates(judged)[[*PLACE, "lr"]].itertuples(index=False, name=None))
        here = _alike(frame, like, RECIPE).index
        frame.loc[here, "best"] = setting[here].isin(best)
    order = {name: place for place, name in enumerate(published.labels())}
    rank = frame["design"].map(lambda name: (order.get(name, len(order)), name))
    return frame.assign(rank=rank).sort_values([*RECIPE, "rank", "n_layers", "lr"])[COLUMNS].reset_index(drop=True)


def _alike(rows: pd.DataFrame, like: pd.Series, keys: Sequence[str]) -> pd.DataFrame:
    return rows[(rows[list(keys)] == like[list(keys)]).all(axis=1)]


def _cell(key: tuple[Hashable, ...], group: pd.DataFrame) -> dict[str, Any]:
    losses = group["val_loss_nats"].astype(float)
    return dict(zip((*RECIPE, *SETTING), key, strict=True)) | {
        "aspect_ratio": float(group["aspect_ratio"].iloc[0]),
        "params_total": int(group["params_total"].iloc[0]),
        "mean": float(losses.mean()),
        "n": len(group),
        "sd": float(losses.std(ddof=1)) if len(group) > 1 else math.nan,
        "se_eval": float(group["val_loss_se"].astype(float).mean()),
        "run_ids": tuple(group.sort_values(["seed", "run_id"])["run_id"]),
    }


def recipes(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The cells of each recipe with the recipe in words, the most-covered first; failed-only cells are left out."""
    known = frame[frame["n"] > 0]
    out = []
    for key, group in known.groupby(list(RECIPE), dropna=False, sort=True):
        r: dict[str, Any] = dict(zip(RECIPE, key, strict=True))
        n_tokens, seq_len, batch = (int(r[name]) for name in ("n_tokens", "seq_len", "global_batch_tokens"))
        words = f"{n_tokens:,} tokens of {r['data_name']}, {seq_len} a sequence, {batch:,} a step"
        out.append((words, group.reset_index(drop=True)))
    return sorted(out, key=lambda item: (-len(item[1]), item[0]))


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
        return Verdict(gap, math.nan, math.nan, math.nan, "one seed: cannot tell")
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


def _best(frame: pd.DataFrame) -> pd.DataFrame:
    shown = frame[frame["best"]]
    if len(shown.drop_duplicates(list(RECIPE))) > 1:
        raise ValueError(
            "the frame mixes recipes, and other tokens or data are another question; take one of recipes(frame)"
        )
    return shown


def against_baseline(frame: pd.DataFrame, baseline: str = "pre_ln") -> pd.DataFrame:
    """The best cell of each design and shape of ONE recipe beside the baseline at the same depth and budget.

    Where a suite counts a design's own parameters, the same depth is not the same width. Raises ValueError if the frame
    mixes recipes, which must never be compared.
    """
    shown = _best(frame)
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
    for design, line in _best(frame).groupby("design", sort=False):
        if len(line) < 2:
            continue
        rows: list[Any] = list(line.sort_values("n_layers").itertuples())
        first, last = rows[0], rows[-1]
        told = verdict(last.mean, last.sd, last.n, first.mean, first.sd, first.n)._asdict()
        place = {"design": design, "n_layers_from": first.n_layers, "n_layers_to": last.n_layers}
        out.append(place | told | {"n_from": first.n, "n_to": last.n})
    columns = ["design", "n_layers_from", "n_layers_to", "n_from", "n_to", *Verdict._fields]
    return pd.DataFrame(out, columns=columns)
