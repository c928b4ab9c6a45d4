"""How does each result look? Frame in, matplotlib figure out, with one colour, marker and dash for each design.

Published numbers are hollow and measured ones filled, in separate panels: their corpora and scales differ. No function
here reads a file, sets a global style or shows a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from depthbench import designs, published
from depthbench.shapes import Shape

# Lightness (CIE L*) goes up in steps of 6 from 10 to 64, so that greyscale tells all ten apart; hues were searched so
# that every pair stays apart under each of the three colour-vision deficiencies.
PALETTE: Mapping[str, str] = MappingProxyType(
    {
        "pre_ln": "#1b1b1b",
        "sandwich_ln": "#490192",
        "lns": "#7f1ee8",
        "deepnorm": "#3b2209",
        "keel": "#10494d",
        "hc": "#e9068a",
        "mhc": "#a57ef8",
        "full_attnres": "#017d4c",
        "block_attnres": "#978804",
        "moda": "#545302",
    }
)
MARKERS: Mapping[str, str] = MappingProxyType(
    dict(zip(PALETTE, ("o", "v", "^", "<", ">", "s", "D", "p", "h", "X"), strict=True))
)
LINESTYLES: Mapping[str, Any] = MappingProxyType(
    {
        "pre_ln": "-",
        "sandwich_ln": (0, (5, 1)),
        "lns": (0, (3, 1, 1, 1)),
        "deepnorm": (0, (1, 1)),
        "keel": (0, (5, 3)),
        "hc": "-",
        "mhc": (0, (7, 2)),
        "full_attnres": "-",
        "block_attnres": (0, (7, 2, 1, 2)),
        "moda": (0, (3, 2)),
    }
)
_SPARE = (("#8c564b", "P", (0, (1, 2))), ("#5f6b7a", "*", (0, (4, 1, 1, 1, 1, 1))), ("#a0522d", "d", (0, (2, 2))))


@dataclass(frozen=True)
class Style:
    """Colour, marker, dash and label of one design, the same in every figure."""

    color: str
    marker: str
    linestyle: Any
    label: str


def style(design: str) -> Style:
    """How a design is drawn; registered designs beyond the ten take spare styles in registry order.

    Raises UnknownDesign for a name that is neither the paper's nor registered.
    """
    if design in PALETTE:
        return Style(PALETTE[design], MARKERS[design], LINESTYLES[design], published.labels()[design])
    label = designs.get(design).label
    color, marker, dash = _SPARE[
        [name for name in designs.names(extras=True) if name not in PALETTE].index(design) % len(_SPARE)
    ]
    return Style(color, marker, dash, label)


def alt_text(figure: Figure) -> str:
    """What a figure of this module shows, for readers who cannot see it; raises ValueError where it has no words."""
    text = figure.get_label()
    if not isinstance(text, str) or not text:
        raise ValueError("this figure has no alternative text; figures of depthbench.figures carry one")
    return text


def at_best_lr(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of each design and shape at its best learning rate, as the paper reports them.

    Best is the lowest mean validation loss over seeds, among the rates with the fewest runs that did not complete: a
    rate at which some seeds diverge does not win by the ones that were left. Only complete runs are returned.
    """
    point = ["design", "n_layers", "d_model"]
    finished = _finished(runs)
    marked = runs.assign(_failed=~finished, _loss=runs["val_loss_nats"].where(finished).astype(float))
    rates = marked.groupby([*point, "lr"], sort=False).agg(failed=("_failed", "sum"), loss=("_loss", "mean"))
    best = rates.dropna(subset="loss").reset_index().sort_values(["failed", "loss"]).drop_duplicates(point)
    return runs[finished].merge(best[[*point, "lr"]], on=[*point, "lr"])


def loss_vs_shape(published_frame: pd.DataFrame, measured_frame: pd.DataFrame | None = None) -> Figure:
    """Validation loss against aspect ratio d_model / n_layers; one line a design, deep-narrow to the right.

    `published_frame` is a table of `published` with `design`, `n_layers`, `d_model`, `value`: hollow markers.
    `measured_frame` is a frame of runs, one suite and one data set (records.load_runs): filled markers in a panel of
    its own. Dots are seeds, the line their mean at the best learning rate (`at_best_lr`), the legend the number of
    seeds; with two seeds or more the band is the mean plus or minus `band_half_width`.
    Raises ValueError where columns or complete runs are missing, or where the runs mix suites or data sets.
    """
    _need(published_frame, ("design", "n_layers", "d_model", "value"), "published_frame")
    panels = 1 if measured_frame is None else 2
    figure, axes = _new_figure(panels, figsize=(6.4 * panels, 4.8))
    drawn = published_frame.assign(mean=published_frame["value"], n=1, half_width=np.nan)
    words = [_draw_losses(axes[0], drawn, None, "Published (arXiv 2609.32534)")]
    if measured_frame is not None:
        runs, title = _measured(measured_frame)
        words.append(_draw_losses(axes[1], _over_seeds(runs), runs, title))
    figure.set_label(
        " ".join(["Line chart of validation loss against aspect ratio, deep and narrow to the right.", *words])
    )
    return figure


def band_half_width(points: pd.DataFrame) -> pd.Series:
    """Half of the band around each mean: two standard errors, the seed variance pooled over the shapes of a design.

    `points` has `design`, `n` seeds and `sd` over them, one row a design and shape; NaN below two seeds.
    """
    squares = (points["sd"].astype(float) ** 2 * (points["n"] - 1)).fillna(0.0)
    freedom = (points["n"] - 1).groupby(points["design"]).transform("sum")
    variance = squares.groupby(points["design"]).transform("sum") / freedom.where(freedom > 0)
    return (2 * (variance / points["n"]) ** 0.5).where(points["n"] > 1)


def training_curve(history: pd.DataFrame) -> Figure:
    """One run over its tokens: training loss in nats, and beside it the gradient norm before clipping, on a log axis.

    `history` has `tokens`, `loss` and `grad_norm`, one row a step. Raises ValueError where they are missing.
    """
    _need(history, ("tokens", "loss", "grad_norm"), "history")
    figure, axes = _new_figure(2, figsize=(9.6, 3.2))
    for ax, column, label in zip(
        axes, ("loss", "grad_norm"), ("training loss (nats per token)", "gradient norm"), strict=True
    ):
        sns.lineplot(history, x="tokens", y=column, ax=ax, color="0.2", linewidth=1.0)
        ax.set(xlabel="training tokens", ylabel=label)
    axes[1].set_yscale("log")
    last = history.iloc[-1]
    figure.set_label(
        f"Two line charts over {int(last['tokens']):,} training tokens: the training loss ends at {last['loss']:.3f} "
        f"nats per token, the gradient norm at {last['grad_norm']:.3f}."
    )
    return figure


def shapes_to_scale(shapes: Iterable[Shape]) -> Figure:
    """Shapes as rectangles, one scale for all: d_model wide and n_layers tall, with a line for every layer.

    Raises ValueError for no shapes.
    """
    drawn = list(shapes)
    if not drawn:
        raise ValueError("no shapes to draw; give at least one, such as SUITES['main-400m'].shapes")
    figure, (ax,) = _new_figure(1, figsize=(8.0, 4.0))
    gap = 0.15 * max(shape.d_model for shape in drawn)
    tallest = max(shape.n_layers for shape in drawn)
    ticks, x = [], 0.0
    for shape in drawn:
        layers = [[(x, y), (x + shape.d_model, y)] for y in range(1, shape.n_layers)]
        ax.add_collection(LineCollection(layers, colors="white", linewidths=0.4, zorder=2))
        ax.add_patch(Rectangle((x, 0), shape.d_model, shape.n_layers, facecolor=PALETTE["keel"], zorder=1))
        ticks.append(x + shape.d_model / 2)
        ax.text(ticks[-1], shape.n_layers + 0.02 * tallest, f"{shape.n_layers} layers", ha="center", va="bottom")
        x += shape.d_model + gap
    ax.set_xticks(ticks, [f"d = {shape.d_model}\nd/L = {shape.aspect_ratio:.1f}" for shape in drawn])
    ax.set(xlim=(-gap, x), ylim=(0, 1.1 * tallest), ylabel="n_layers", xlabel="d_model (width of the rectangle)")
    ax.grid(False)
    said = "; ".join(f"{shape.n_layers} layers of width {shape.d_model}" for shape in drawn)
    figure.set_label(f"Rectangles to one scale, width d_model and height n_layers: {said}.")
    return figure


def _new_figure(panels: int, figsize: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    with sns.axes_style("whitegrid"):
        figure, axes = plt.subplots(1, panels, figsize=figsize, layout="constrained", squeeze=False)
    plt.close(figure)  # pyplot forgets it, so that a notebook shows it once and none piles up
    return figure, list(axes[0])


def _need(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    if missing := [column for column in columns if column not in frame]:
        raise ValueError(f"{what} lacks the columns {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    if frame.empty:
        raise ValueError(f"{what} has no rows; nothing to draw")


def _finished(runs: pd.DataFrame) -> pd.Series:
    return (runs["status"] == "complete") & np.isfinite(runs["val_loss_nats"].astype(float))


def _measured(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Runs to draw, with a title that says what they are and what was left out."""
    needed = ("suite", "data_name", "design", "n_layers", "d_model", "lr", "status", "val_loss_nats")
    _need(frame, needed, "measured_frame")
    for column in ("suite", "data_name"):
        if frame[column].nunique(dropna=False) > 1:
            kinds = ", ".join(sorted(map(str, frame[column].unique())))
            raise ValueError(f"measured_frame mixes {column}: {kinds}; losses of one only compare, so filter the frame")
    runs = at_best_lr(frame)
    if runs.empty:
        raise ValueError("measured_frame has no complete run; nothing to draw")
    title = f"Measured here: {frame['suite'].iloc[0]} on {frame['data_name'].iloc[0]}"
    if frame.groupby(["design", "n_layers", "d_model"])["lr"].nunique().max() > 1:
        title += ", best learning rate"
    if failed := int((~_finished(frame)).sum()):
        title += f"\n{failed} diverged or stopped {'run' if failed == 1 else 'runs'} not drawn"
    return runs, title


def _over_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """One row a design and shape: mean, n, sd over seeds and the band's half-width."""
    points = runs.groupby(["design", "n_layers", "d_model"], sort=False)["val_loss_nats"]
    frame = points.agg(mean="mean", n="size", sd="std").reset_index()
    return frame.assign(half_width=band_half_width(frame))


def _draw_losses(ax: Axes, points: pd.DataFrame, seeds: pd.DataFrame | None, title: str) -> str:
    """Draw one panel and say in words what it shows."""
    points = points.assign(aspect=(points["d_model"] / points["n_layers"]).astype(float))
    words = []
    present = list(dict.fromkeys(points["design"]))
    for design in sorted(present, key=lambda d: [*PALETTE, *present].index(d)):  # the paper's order, then others
        look = style(design)
        line = points[points["design"] == design].sort_values("aspect", ascending=False)
        low, high = int(line["n"].min()), int(line["n"].max())
        label = look.label if seeds is None else f"{look.label} (n={low if low == high else f'{low}-{high}'})"
        hollow = {"markerfacecolor": "white" if seeds is None else look.color, "markeredgecolor": look.color}
        dash = {"color": look.color, "marker": look.marker, "linestyle": look.linestyle}
        sns.lineplot(
            x=line["aspect"], y=line["mean"], ax=ax, label=label, errorbar=None, legend=False, **dash, **hollow
        )
        band = line.dropna(subset="half_width")
        if len(band):
            edges = band["mean"] - band["half_width"], band["mean"] + band["half_width"]
            ax.fill_between(band["aspect"], *edges, color=look.color, alpha=0.15, linewidth=0)
        if seeds is not None:
            own = seeds[seeds["design"] == design]
            dots = {"x": own["d_model"] / own["n_layers"], "y": own["val_loss_nats"], "color": look.color}
            sns.scatterplot(**dots, marker=look.marker, s=14, alpha=0.6, linewidth=0, ax=ax, legend=False)
        first, last = line.iloc[0], line.iloc[-1]
        words.append(
            f"{label} {first['mean']:.3f} at {first['aspect']:.1f} to {last['mean']:.3f} at {last['aspect']:.1f}"
        )
    _finish(ax, points, title)
    return f"{title.replace(chr(10), '; ')}: {'; '.join(words)}."


def _finish(ax: Axes, points: pd.DataFrame, title: str) -> None:
    ax.set_xscale("log")
    ax.invert_xaxis()
    by_aspect = points.groupby("aspect")["n_layers"].unique()
    ticks = list(by_aspect.index)
    ax.set_xticks(ticks, [f"{tick:.0f}" if tick >= 10 else f"{tick:.1f}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    top = ax.secondary_xaxis("top")
    top.set_xticks(ticks, ["/".join(str(int(n)) for n in sorted(layers)) for layers in by_aspect])
    top.xaxis.set_minor_locator(NullLocator())
    top.set_xlabel("n_layers")
    ax.set_xlabel("aspect ratio d_model / n_layers (log; deep-narrow to the right)")
    ax.set_ylabel("validation loss (nats per token)")
    ax.set_title(title, pad=10)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, frameon=False, fontsize="small", handlelength=3)
