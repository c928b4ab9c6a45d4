"""Where in depth does something happen? Heat maps of probes, a column a design, the untrained control below.

Lightness rises with the value, so that a map reads the same in grey; all maps of one figure share one scale. Cells
without a meaning are hatched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from depthbench.figures.styles import style
from depthbench.probes.late import permutation_score
from depthbench.probes.results import ProbeResult

COLORMAP = "cividis"


def angular_map(
    trained: Sequence[ProbeResult], step_0: Sequence[ProbeResult] = (), which: str = "all_tokens"
) -> Figure:
    """Angular distance between the states before layers l and l + n: x the layer l, y the lag n, low is alike.

    `which`: all_tokens, without_first or last_token. Raises ValueError for results of another probe.
    """

    def by_lag(result: ProbeResult) -> np.ndarray:
        d = result[which]
        lags = np.full((len(d) - 1, len(d) - 1), np.nan)
        for n in range(1, len(d)):
            lags[n - 1, : len(d) - n] = np.diagonal(d, n)
        return lags

    labels = "layer l", "lag n (layers)", "angular distance (half turns)"
    return _maps("angular_distance", trained, step_0, by_lag, labels, offset=(0, 1))


def causal_map(trained: Sequence[ProbeResult], step_0: Sequence[ProbeResult] = (), which: str = "score") -> Figure:
    """Relative change of layer l (x) when layer s (y) is left out; `which`: score, or branch_score, like for like."""
    labels = "layer l", "layer left out", "relative change" + (" of branch outputs" if which == "branch_score" else "")
    return _maps("causal_scores", trained, step_0, lambda result: result[which], labels, top=True)


def permutation_map(trained: Sequence[ProbeResult], step_0: Sequence[ProbeResult] = ()) -> Figure:
    """Relative change of the loss when layers a (y) and b (x) trade places."""
    labels = "layer b", "layer a", "relative change of the loss"
    return _maps("permutation_scores", trained, step_0, permutation_score, labels, top=True)


def path_weight_map(
    trained: Sequence[ProbeResult], step_0: Sequence[ProbeResult] = (), which: str = "weight"
) -> Figure:
    """Weight of each sublayer's output (x; 0 is the embedding) in each later read (y; the last is the end).

    `which`: weight; share, |weight| over the sum of the reader's, since every read is normed and only ratios count; or
    contribution, which counts the size of the outputs too.
    """

    def cells(result: ProbeResult) -> np.ndarray:
        if which != "share":
            return result[which]
        size = np.abs(result["weight"])
        return np.asarray(size / np.nansum(size, 1, keepdims=True))

    named = "share of a reader's weights" if which == "share" else f"mean {which}"
    labels = "source (0 the embedding)", "reader (last: the end)", named
    return _maps("path_weights", trained, step_0, cells, labels)


def depth_mixing_map(trained: Sequence[ProbeResult], step_0: Sequence[ProbeResult] = ()) -> Figure:
    """Softmax weight of each source (x; 0 is the embedding) in each sublayer's mixture (y; the last is the end)."""
    labels = "source (0 the embedding)", "mixture (last: the end)", "mean softmax weight"
    return _maps("depth_mixing", trained, step_0, lambda result: result["weight"], labels)


def no_results(probe: str) -> Figure:
    """A panel that says which results are missing and how to make them, for a page that has none yet."""
    figure, axes = plt.subplots(figsize=(6.4, 1.6), layout="constrained")
    plt.close(figure)
    told = f"No kept results of {probe} yet. Make them from a finished run:\npython -m depthbench.probes RUN_DIR"
    axes.text(0.5, 0.5, told, ha="center", va="center")
    axes.set_axis_off()
    figure.set_label(told)
    return figure


def check_probe(probe: str, *groups: Sequence[ProbeResult]) -> None:
    """Raise ValueError where there is nothing to draw, or results of another probe."""
    if not groups[0]:
        raise ValueError(f"no results to draw; give at least one of probes.{probe}")
    if other := {result.probe for group in groups for result in group} - {probe}:
        raise ValueError(f"this figure draws results of {probe}, got {', '.join(sorted(other))}")


def title_of(result: ProbeResult) -> str:
    """Design and depth of a result."""
    return f"{style(result.provenance['design']).label}, L = {result.provenance['n_layers']}"


def _maps(
    probe: str,
    trained: Sequence[ProbeResult],
    step_0: Sequence[ProbeResult],
    matrix: Callable[[ProbeResult], np.ndarray],
    labels: tuple[str, str, str],
    *,
    offset: tuple[int, int] = (0, 0),
    top: bool = False,
) -> Figure:
    """One map a result; trained above, the control of the same design below."""
    check_probe(probe, trained, step_0)
    rows = [("trained", trained), ("step 0", step_0)] if step_0 else [("", trained)]
    values = [matrix(result) for _, group in rows for result in group]
    low, high = min(np.nanmin(v) for v in values), max(np.nanmax(v) for v in values)
    columns = max(len(group) for _, group in rows)
    with sns.axes_style("white"):
        figure, axes = plt.subplots(
            len(rows), columns, figsize=(1.0 + 3.1 * columns, 3.0 * len(rows)), layout="constrained", squeeze=False
        )
    plt.close(figure)
    words = []
    for row, (kind, group) in zip(axes, rows, strict=True):
        for ax in row[len(group) :]:
            ax.set_visible(False)
        for ax, result in zip(row, group, strict=False):
            cells = matrix(result)
            _draw(ax, cells, low, high, offset)
            ax.set_title(", ".join(filter(None, (title_of(result), kind))), fontsize="medium")
            ax.set(xlabel=labels[0], ylabel=labels[1])
            if top:
                ax.invert_yaxis()
            words.append(f"{ax.get_title()}: mean {np.nanmean(cells):.3g}, largest {np.nanmax(cells):.3g}")
    figure.colorbar(axes[0, 0].images[0], ax=list(axes.flat), label=labels[2], shrink=0.8)
    figure.set_label(f"Heat maps of {labels[2]}, {labels[1]} against {labels[0]}. {'; '.join(words)}.")
    return figure


def _draw(ax: Axes, cells: np.ndarray, low: float, high: float, offset: tuple[int, int]) -> None:
    ax.set_facecolor("0.93")
    ax.patch.set(hatch="///", edgecolor="0.8")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    height, width = cells.shape
    x, y = offset
    extent = (x - 0.5, x + width - 0.5, y - 0.5, y + height - 0.5)
    ax.imshow(
        np.ma.masked_invalid(cells), cmap=COLORMAP, vmin=low, vmax=high, origin="lower", extent=extent, aspect="auto"
    )
