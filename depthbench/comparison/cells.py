"""What do the runs of a grid say, cell by cell, and how sure is it?

A cell is a design at a shape with one learning rate, under one recipe. Runs of different recipes (tokens, batch,
sequence length, data, options) never share a cell. The spread of a cell is over seeds; the evaluation's standard error
says how well one model's loss was measured and nothing about another seed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

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


def best_of_one_recipe(frame: pd.DataFrame) -> pd.DataFrame:
    """The cells at their best learning rate; raises ValueError where the frame mixes recipes."""
    shown = frame[frame["best"]]
    if len(shown.drop_duplicates(list(RECIPE))) > 1:
        raise ValueError(
            "the frame mixes recipes, and other tokens or data are another question; take one of recipes(frame)"
        )
    return shown
