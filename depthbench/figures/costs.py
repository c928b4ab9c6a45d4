"""What do shape and design cost? Prefill and cache against aspect ratio, bytes moved, and loss against compute."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from depthbench.figures.styles import need, new_figure, style


def prefill_and_cache(costs: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """Two panels against d / L: FLOPs of prefill, a line a design, and bytes of the key-value cache.

    `costs` is a frame of `costs.summary`; `published`, drawn hollow, has `aspect_ratio` and `tflop`. The published
    numbers are counts of the same shapes, so they share the axis. Raises ValueError for columns or rows that lack.
    """
    need(costs, ["design", "aspect_ratio", "prefill_flops", "kv_cache_bytes"], "the frame of costs")
    figure, (left, right) = new_figure(2, (9.0, 3.8))
    said = []
    for design, rows in costs.groupby("design", sort=False):
        look, rows = style(str(design)), rows.sort_values("aspect_ratio")
        left.plot(
            rows.aspect_ratio,
            rows.prefill_flops / 1e12,
            color=look.color,
            marker=look.marker,
            linestyle=look.linestyle,
            label=look.label,
        )
        ends = rows.prefill_flops.iloc[[-1, 0]] / 1e12
        said.append(f"{look.label} from {ends.iloc[0]:.2f} to {ends.iloc[1]:.2f}")
    if published is not None:
        left.plot(published.aspect_ratio, published.tflop, "o", ms=11, mfc="none", mec="black", label="published")
    cache = costs.drop_duplicates("aspect_ratio").sort_values("aspect_ratio")
    right.plot(cache.aspect_ratio, cache.kv_cache_bytes / 1e6, color="black", marker="o")
    left.set(xlabel="aspect ratio d/L", ylabel="prefill, TFLOP a sequence", xscale="log")
    right.set(xlabel="aspect ratio d/L", ylabel="key-value cache, MB", xscale="log", ylim=(0, None))
    for ax in (left, right):
        ax.invert_xaxis()
    left.legend(fontsize="small")
    first, last = cache.kv_cache_bytes.iloc[[-1, 0]] / 1e6
    figure.set_label(
        f"Left, TFLOP of prefill from the shallowest shape to the deepest: {'; '.join(said)}. "
        f"Right, the key-value cache of every design: from {first:.0f} to {last:.0f} MB."
    )
    return figure


def moved_vs_flops(costs: pd.DataFrame) -> Figure:
    """One point a design at one shape: the residual path's FLOPs a token against the bytes it moves a token.

    `costs` is a frame of `costs.summary` at one shape. Raises ValueError for several shapes, or columns or rows that
    lack.
    """
    need(costs, ["design", "n_layers", "d_model", "design_flops", "seq_len", "bytes_moved_per_token"], "the frame")
    if len(costs[["n_layers", "d_model"]].drop_duplicates()) > 1:
        raise ValueError("the frame has several shapes; give the rows of one")
    figure, (ax,) = new_figure(1, (6.5, 4.0))
    said = []
    row: Any
    for row in costs.itertuples():
        look = style(str(row.design))
        flops, moved = row.design_flops / row.seq_len / 1e6, row.bytes_moved_per_token / 1e6
        ax.plot(flops, moved, linestyle="", marker=look.marker, ms=9, color=look.color, label=look.label)
        said.append(f"{look.label} {moved:.2f} MB and {flops:.1f} MFLOP")
    ax.set(xlabel="products of the residual path, MFLOP a token", ylabel="bytes it moves, MB a token", ylim=(0, None))
    ax.legend(fontsize="small", bbox_to_anchor=(1.02, 1), loc="upper left")
    figure.set_label(f"Bytes moved against products of the residual path, for a token: {'; '.join(said)}.")
    return figure


def loss_vs_cost(points: pd.DataFrame, cost: str = "train_flops") -> Figure:
    """Mean validation loss against what a run cost, a marker a design, with a step through the points none beats.

    `points` is a frame of `costs.pareto` (or `costs.loss_and_cost` with `efficient`). Raises ValueError for columns or
    rows that lack.
    """
    need(points, ["design", "n_layers", "loss", "efficient", cost], "the frame of points")
    names = {"train_flops": "training FLOPs of a run", "wall_s": "seconds of a run"}
    figure, (ax,) = new_figure(1, (7.0, 4.2))
    front = points[points.efficient].sort_values(cost)
    ax.step(front[cost], front.loss, where="post", color="0.45", lw=1.2, label="no point is better", zorder=1)
    for design, rows in points.groupby("design", sort=False):
        look = style(str(design))
        ax.plot(rows[cost], rows.loss, linestyle="", marker=look.marker, color=look.color, label=look.label)
    for row in front.itertuples():
        at = (float(getattr(row, cost)), float(row.loss))  # type: ignore[arg-type]
        ax.annotate(f"L={row.n_layers}", at, textcoords="offset points", xytext=(4, -11), fontsize="small")
    ax.set(xlabel=names.get(cost, cost), ylabel="validation loss, nats a token", xscale="log")
    ax.legend(fontsize="small", bbox_to_anchor=(1.02, 1), loc="upper left")
    said = "; ".join(
        f"{style(str(row.design)).label} with {row.n_layers} layers, {row.loss:.3f} nats" for row in front.itertuples()
    )
    figure.set_label(
        f"Validation loss against {names.get(cost, cost)}. No other point beats, from the cheapest: {said}."
    )
    return figure
