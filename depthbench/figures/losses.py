"""How does the loss move with the shape? Published values hollow, measured ones filled, each in a panel of its own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from depthbench.figures.styles import PALETTE, need, new_figure, style
from depthbench.sweeps import PLACE, best_rates, finished


def at_best_lr(runs: pd.DataFrame) -> pd.DataFrame:
    """The complete runs of each design and shape at its best learning rate, as the paper reports them.

    `sweeps.best_rates` says which rate is best.
    """
    done = runs[finished(runs)]
    if done.empty:
        return done
    best = best_rates(runs)
    place = [column for column in PLACE if column in runs]
    return done.merge(best[[*place, "lr"]], on=[*place, "lr"])


def loss_vs_shape(published_frame: pd.DataFrame, measured_frame: pd.DataFrame | None = None) -> Figure:
    """Validation loss against aspect ratio d_model / n_layers; one line a design, deep-narrow to the right.

    `published_frame` is a table of `published` with `design`, `n_layers`, `d_model`, `value`: hollow markers.
    `measured_frame` is a frame of runs, one suite and one data set (records.load_runs): filled markers in a panel of
    its own. Dots are seeds, the line their mean at the best learning rate (`at_best_lr`), the legend the number of
    seeds; with two seeds or more the band is the mean plus or minus `band_half_width`.
    Raises ValueError where columns or complete runs are missing, or where the runs mix suites or data sets.
    """
    need(published_frame, ("design", "n_layers", "d_model", "value"), "published_frame")
    panels = 1 if measured_frame is None else 2
    figure, axes = new_figure(panels, figsize=(6.4 * panels, 4.8))
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


def _measured(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Runs to draw, with a title that says what they are and what was left out."""
    needed = ("suite", "data_name", "design", "n_layers", "d_model", "lr", "status", "val_loss_nats")
    need(frame, needed, "measured_frame")
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
    if failed := int((~finished(frame)).sum()):
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
