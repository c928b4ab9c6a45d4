"""Beyond equal parameters: which design and shape wins for the same compute, or for the same seconds?

The default reading is on finished runs: final loss against cost, and which points no other one beats (`pareto`,
`best_within`). Reading losses off training curves at a fixed budget (`loss_at_budget`) is offered too, but a run in the
middle of its cosine schedule still has a high learning rate: its loss there is higher than that of a shorter run that
was planned to end there, so such losses compare only among runs that are equally far through their own schedule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from depthbench.costs.flops import Counting, prefill_flops, training_flops
from depthbench.paths import RESULTS
from depthbench.shapes import BASELINE, FeedForwardRule, Shape, solve
from depthbench.sweeps import best_rates, finished

_SHAPE = ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab_size")
_RECIPE = ("suite", "data_name", "data_sha256", "seq_len", "global_batch_tokens", "n_tokens", "recipe", "dtype")
_COST = Literal["train_flops", "wall_s"]


def with_costs(runs: pd.DataFrame, *, counting: Counting = "causal") -> pd.DataFrame:
    """Runs with `flops_per_token` and `train_flops` (forward and backward of all their tokens) beside `wall_s`."""

    def of(row: Any) -> float:
        shape = Shape(**{name: int(getattr(row, name)) for name in _SHAPE})
        return training_flops(row.design, shape, seq_len=int(row.seq_len), counting=counting, **json.loads(row.options))

    per_token = pd.Series([of(row) for row in runs.itertuples()], index=runs.index, dtype=float)
    return runs.assign(flops_per_token=per_token, train_flops=per_token * runs["n_tokens"])


def loss_and_cost(runs: pd.DataFrame, *, counting: Counting = "causal") -> pd.DataFrame:
    """One row a design, shape and recipe at its best learning rate: mean loss over seeds, and what a run cost.

    Columns: the recipe's, the shape's, `lr`, `loss` (nats), `n` seeds, `sd` over them (NaN below two), `train_flops`,
    `wall_s` (median over seeds; of whatever else the machine did beside it). Recipes may differ in tokens: a run of few
    tokens is a cheap run. Raises ValueError where data or sequence length differ, since their losses do not compare.
    """
    rows = runs[(runs["kind"] == "measured") & finished(runs)] if len(runs) else runs
    for column in ("data_sha256", "seq_len"):
        if rows[column].nunique() > 1:
            kinds = ", ".join(sorted(map(str, rows[column].unique())))
            raise ValueError(f"the runs mix {column}: {kinds}; their losses do not compare, so filter the frame")
    out: list[dict[str, Any]] = []
    for key, group in with_costs(rows, counting=counting).groupby(list(_RECIPE), dropna=False):
        place = ["design", "options", "n_layers", "d_model", "d_ff"]
        best = group.merge(best_rates(group)[[*place, "lr"]], on=[*place, "lr"])
        for _, own in best.groupby(place, sort=False):
            first = own.iloc[0]
            losses = own["val_loss_nats"].astype(float)
            out.append(
                dict(zip(_RECIPE, key, strict=True))
                | {name: first[name] for name in ("design", "options", *_SHAPE, "aspect_ratio", "params_total", "lr")}
                | {"loss": losses.mean(), "n": len(own), "sd": losses.std(ddof=1) if len(own) > 1 else math.nan}
                | {"train_flops": first["train_flops"], "wall_s": float(own["wall_s"].median())}
            )
    columns = [*_RECIPE, "design", "options", *_SHAPE, "aspect_ratio", "params_total", "lr", "loss", "n", "sd"]
    return pd.DataFrame(out, columns=[*columns, "train_flops", "wall_s"])


def pareto(points: pd.DataFrame, cost: str = "train_flops", loss: str = "loss") -> pd.DataFrame:
    """The points with a column `efficient`: no other is at least as cheap and at least as good, and better in one.

    A point without a number in either column is not efficient.
    """
    costs, losses = points[cost].to_numpy(float), points[loss].to_numpy(float)
    beaten = [
        bool(((costs <= c) & (losses <= y) & ((costs < c) | (losses < y))).any())
        for c, y in zip(costs, losses, strict=True)
    ]
    return points.assign(efficient=~np.array(beaten, dtype=bool) & np.isfinite(costs) & np.isfinite(losses))


def best_within(
    points: pd.DataFrame,
    budgets: Iterable[float],
    cost: str = "train_flops",
    loss: str = "loss",
    *,
    by: Sequence[str] = (),
) -> pd.DataFrame:
    """For every budget (and group of `by`), the point of lowest loss among those that cost no more.

    A column `budget` is added, and `n_within`, how many points the budget pays for; a budget that pays for none has
    no row.
    """
    found = []
    for budget in budgets:
        within = points[points[cost].astype(float) <= budget]
        for _, group in within.groupby(list(by), sort=False) if by else [((), within)]:
            if len(group):
                best = group.loc[[group[loss].astype(float).idxmin()]]
                found.append(best.assign(budget=budget, n_within=len(group)))
    if not found:
        return points.iloc[:0].assign(budget=pd.Series(dtype=float), n_within=pd.Series(dtype=int))
    return pd.concat(found, ignore_index=True)


def loss_at_budget(
    runs: pd.DataFrame,
    budget: float,
    cost: _COST = "train_flops",
    *,
    curves: Path | Mapping[str, pd.DataFrame] = RESULTS / "curves",
    window: float = 0.05,
) -> pd.DataFrame:
    """The training loss that each run had reached when it had spent `budget` flops or seconds, read off its curve.

    `curves` is a folder of `<run id>.csv` or frames by run id, with `tokens`, `loss`, `lr`. `train_loss_nats` is the
    mean over the last `window` (relative) of the tokens spent, since a step's loss is that of one batch. `schedule` is
    the fraction of the run's tokens spent by then and `lr_fraction` its rate over its highest: compare only runs
    that are alike in both (see the module). A run whose budget is not reached, or without a curve, has NaN. Seconds
    are taken to pass evenly over a run.
    """
    if not budget > 0:
        raise ValueError(f"budget={budget} is not an amount of {cost}; give a positive number")
    if cost not in ("train_flops", "wall_s"):
        raise ValueError(f"unknown cost {cost!r}; allowed: train_flops, wall_s")
    rows = []
    run: Any
    for run in with_costs(runs[finished(runs)]).itertuples():
        share = budget / float(getattr(run, cost))
        curve = _curve(curves, str(run.run_id))
        loss, rate = math.nan, math.nan
        if curve is not None and share <= 1:
            tokens = share * float(run.n_tokens)
            spent = curve[curve["tokens"] <= tokens]
            last = spent[spent["tokens"] > (1 - window) * tokens]
            last = last if len(last) else spent.iloc[-1:]
            if len(last):
                loss = float(last["loss"].mean())
                rate = float(last["lr"].iloc[-1] / curve["lr"].max())
        names = ("run_id", "design", "n_layers", "d_model", "lr", "seed", "n_tokens")
        rows.append(
            {name: getattr(run, name) for name in names}
            | {"budget": budget, "schedule": share, "lr_fraction": rate, "train_loss_nats": loss}
        )
    columns = ["run_id", "design", "n_layers", "d_model", "lr", "seed", "n_tokens", "budget", "schedule", "lr_fraction"]
    return pd.DataFrame(rows, columns=[*columns, "train_loss_nats"])


def _curve(curves: Path | Mapping[str, pd.DataFrame], run_id: str) -> pd.DataFrame | None:
    if isinstance(curves, Path):
        path = curves / f"{run_id}.csv"
        return pd.read_csv(path) if path.exists() else None
    return curves.get(run_id)


def same_backbone_same_total(
    design: str, shape: Shape, *, ffn: FeedForwardRule = "8d/3", seq_len: int = 2048, **options: Any
) -> pd.DataFrame:
    """What a design's own parameters would buy as width, at one depth: four models, one row each.

    "baseline": Pre-LN at `shape`. "same backbone": the design at `shape`, larger by what it adds. "same total": the
    design at the width that holds the baseline's total. "as width": Pre-LN with the total of "same backbone". Widths
    go in steps of 2 n_heads, so a small addition may buy none; `relative_gap` says how far each is from its budget.
    Raises UnknownDesign, and ValueError for an option the design lacks.
    """
    plain, own = shape.num_params().total, shape.num_params(design, **options).total
    heads = shape.model_dump(include={"n_layers", "n_heads", "n_kv_heads", "vocab_size"})

    def at(total: int, name: str, of: Mapping[str, Any]) -> Shape:
        return solve(total=float(total), design=name, options=of, ffn=ffn, tolerance=math.inf, **heads)

    readings = {
        "baseline": (BASELINE, {}, shape, plain),
        "same backbone": (design, options, shape, own),
        "same total": (design, options, at(plain, design, options), plain),
        "as width": (BASELINE, {}, at(own, BASELINE, {}), own),
    }
    return pd.DataFrame(
        [
            {
                "reading": reading,
                "design": name,
                **found.model_dump(include={"n_layers", "d_model", "d_ff"}),
                "params_total": found.num_params(name, **of).total,
                "params_design": found.num_params(name, **of).design,
                "relative_gap": found.num_params(name, **of).total / budget - 1,
                "training_flops_per_token": training_flops(name, found, seq_len=seq_len, **of),
                "prefill_flops": prefill_flops(name, found, **of),
            }
            for reading, (name, of, found, budget) in readings.items()
        ]
    )
