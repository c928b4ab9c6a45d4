"""What do shape and design cost? Prefill and cache against aspect ratio, counted and measured; bytes moved; loss
against compute.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from depthbench.figures.styles import PALETTE, need, new_figure, style


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
    left.set(ylabel="prefill, TFLOP a sequence")
    right.set(ylabel="key-value cache, MB", ylim=(0, None))
    for ax in (left, right):
        _against_shape(ax, costs)
    left.legend(fontsize="small")
    first, last = cache.kv_cache_bytes.iloc[[-1, 0]] / 1e6
    figure.set_label(
        f"Left, TFLOP of prefill from the shallowest shape to the deepest: {'; '.join(said)}. "
        f"Right, the key-value cache of every design: from {first:.0f} to {last:.0f} MB."
    )
    return figure


def prefill_measured(rows: pd.DataFrame) -> Figure:
    """Two panels against d / L, a line a design: seconds of one prefill, and the rise of memory over it.

    `rows` is a frame of `costs.load_prefill` of one setting: a point is the median turn, the bar its spread over turns.
    Raises ValueError where machines, dtypes, clocks or lengths are mixed, or columns or rows lack.
    """
    setting = ("device", "n_threads", "dtype", "compile", "clock", "seq_len", "batch_size", "suite")
    need(rows, [*setting, "design", "aspect_ratio", "seconds", "seconds_min", "seconds_max", "peak_bytes"], "rows")
    for column in setting:
        if rows[column].nunique(dropna=False) > 1:
            kinds = ", ".join(sorted(map(str, rows[column].unique())))
            raise ValueError(f"rows mix {column}: {kinds}; take those of one, their times do not compare")
    figure, (left, right) = new_figure(2, (9.0, 4.2))
    said = []
    for design, own in rows.groupby("design", sort=False):
        look, own = style(str(design)), own.sort_values("aspect_ratio", ascending=False)
        dash: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": look.linestyle}
        spread = [own.seconds - own.seconds_min, own.seconds_max - own.seconds]
        left.errorbar(own.aspect_ratio, own.seconds, yerr=spread, label=look.label, elinewidth=0.8, **dash)
        right.plot(own.aspect_ratio, own.peak_bytes.astype(float) / 1e6, label=look.label, **dash)
        first, last = own.iloc[0], own.iloc[-1]
        peak = (
            f", {first.peak_bytes / 1e6:.0f} to {last.peak_bytes / 1e6:.0f} MB" if own.peak_bytes.notna().all() else ""
        )
        said.append(f"{look.label} {first.seconds:.2f} to {last.seconds:.2f} s{peak}")
    clock = "CPU seconds" if rows.clock.iloc[0] == "process" else "seconds"
    left.set(ylabel=f"prefill, {clock} a pass", ylim=(0, None))
    right.set(ylabel="rise of memory over it, MB", ylim=(0, None))
    for ax in (left, right):
        _against_shape(ax, rows)
    if rows.peak_bytes.isna().all():
        right.text(0.5, 0.5, "not measured", ha="center", va="center", transform=right.transAxes)
    right.legend(fontsize="small", bbox_to_anchor=(1.02, 1), loc="upper left")
    figure.set_label(
        f"Measured prefill of {int(rows.seq_len.iloc[0])} tokens on {rows.device.iloc[0]}, from the shallowest shape "
        f"to the deepest: {'; '.join(said)}."
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
    present = list(dict.fromkeys(map(str, points.design)))
    for design in sorted(present, key=lambda name: [*PALETTE, *present].index(name)):
        look, rows = style(design), points[points.design == design]
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


def _against_shape(ax: Axes, rows: pd.DataFrame) -> None:
    """A log axis of aspect ratios, deep and narrow to the right, with a tick at each shape."""
    ax.set(xscale="log", xlabel="aspect ratio d/L (log; deep and narrow to the right)")
    ticks = sorted(rows.aspect_ratio.unique())
    ax.set_xlim(ticks[0] / 1.1, ticks[-1] * 1.1)
    ax.set_xticks(ticks, [f"{tick:.0f}" if tick >= 10 else f"{tick:.1f}" for tick in ticks], fontsize="small")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.invert_xaxis()
