"""How does it go with depth? Curves of probes, one line a design, with bands over documents and the untrained control.

Trained models are full lines with markers, step 0 is a thin line of the same colour with hollow markers. Bands are 95 %
intervals, documents resampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthbench.figures.probes_maps import check_probe, title_of
from depthbench.figures.styles import Style, new_figure, style
from depthbench.probes.late import THRESHOLDS, permutation_score, survival
from depthbench.probes.results import ProbeResult


@dataclass(frozen=True)
class _Curve:
    """What one panel draws of each result."""

    array: str
    ylabel: str
    xlabel: str
    pick: Callable[[np.ndarray], np.ndarray] = lambda mean: mean


def late_survival(
    causal: Sequence[ProbeResult],
    permutation: Sequence[ProbeResult],
    causal_step_0: Sequence[ProbeResult] = (),
    permutation_step_0: Sequence[ProbeResult] = (),
    which: str = "score",
) -> Figure:
    """Share of late pairs of layers (both in the last three quarters) whose score is above each threshold.

    The paper's thresholds are dotted. `which`: score or branch_score, for the causal panel.
    """
    check_probe("causal_scores", causal, causal_step_0)
    check_probe("permutation_scores", permutation, permutation_step_0)
    figure, axes = new_figure(2, figsize=(11.0, 4.2))
    words = []
    for ax, name, trained, step_0 in (
        (axes[0], "causal", causal, causal_step_0),
        (axes[1], "permutation", permutation, permutation_step_0),
    ):
        for group, is_trained in ((trained, True), (step_0, False)):
            for result in group:
                scores = result[which] if name == "causal" else permutation_score(result)
                thresholds, shares = survival(scores)
                look = style(result.provenance["design"])
                ax.step(thresholds, shares, where="post", label=_label(result, is_trained), **_line(look, is_trained))
                above = float(shares[thresholds <= THRESHOLDS[name]][-1])
                words.append(f"{_label(result, is_trained)}, {name} above {THRESHOLDS[name]}: {above:.0%}")
        ax.axvline(THRESHOLDS[name], color="0.3", linestyle=":", linewidth=1)
        ax.set(xlabel=f"{name} score", ylabel="share of late pairs above", ylim=(-0.02, 1.02))
        ax.legend(fontsize="small", frameon=False)
    figure.set_label(f"Survival curves of late pairs of layers. {'; '.join(words)}.")
    return figure


def pruning_and_lens(
    pruning: Sequence[ProbeResult],
    lens: Sequence[ProbeResult],
    pruning_step_0: Sequence[ProbeResult] = (),
    lens_step_0: Sequence[ProbeResult] = (),
    which_lens: str = "close",
) -> Figure:
    """Left, the loss added by leaving out each layer; right, KL from the final prediction to that after each layer."""
    check_probe("layer_pruning", pruning, pruning_step_0)
    check_probe("logit_lens", lens, lens_step_0)
    row = lens[0].labels["lens"].index(which_lens)
    loss = _Curve("loss_increase", "loss added (nats per token)", "layer left out")
    kl = _Curve("kl_final_to_layer", "KL(final || after l layers) (nats)", "layers l", lambda mean: mean[row])
    figure, axes = new_figure(2, figsize=(11.0, 4.2))
    words = [*_panel(axes[0], loss, pruning, pruning_step_0), *_panel(axes[1], kl, lens, lens_step_0)]
    axes[0].axhline(0.0, color="0.3", linewidth=0.8)
    axes[1].set_title(f"lens: {which_lens}", fontsize="medium")
    figure.set_label(f"Line charts of layer pruning, left, and of the LogitLens, right. {'; '.join(words)}.")
    return figure


def running_sum(trained: Sequence[ProbeResult], step_0: Sequence[ProbeResult] = ()) -> Figure:
    """Weight of the block's running sum, left, and of the embedding, right, in each mixture of Block AttnRes."""
    check_probe("depth_mixing", trained, step_0)
    figure, axes = new_figure(2, figsize=(11.0, 4.0))
    words = []
    for ax, array, ylabel in (
        (axes[0], "running_sum", "weight on the running sum"),
        (axes[1], "embedding", "weight on the embedding"),
    ):
        words += _panel(ax, _Curve(array, ylabel, "sublayer (last: the end)"), trained, step_0)
        ax.set_ylim(-0.02, 1.02)
    figure.set_label(f"Line charts of depth mixing. {'; '.join(words)}.")
    return figure


def transport(trained: Sequence[ProbeResult], step_0: Sequence[ProbeResult] = (), which: str = "entropy") -> Figure:
    """Effective rank of the composed residual maps, left, and overlap of the streams, right, after each sublayer.

    `which`: entropy (p = s / sum s) or energy (p = s^2 / sum s^2). Raises ValueError for another.
    """
    arrays = {"entropy": "effective_rank", "energy": "effective_rank_energy"}
    if which not in arrays:
        raise ValueError(f"which must be {' or '.join(map(repr, arrays))}, got {which!r}")
    check_probe("residual_transport", trained, step_0)
    figure, axes = new_figure(2, figsize=(11.0, 4.2))
    rank = _Curve(arrays[which], f"effective rank ({which})", "sublayers composed")
    overlap = _Curve("stream_overlap", "mean |cos| between streams", "after sublayers")
    words = [*_panel(axes[0], rank, trained, step_0), *_panel(axes[1], overlap, trained, step_0)]
    axes[0].set_ylim(bottom=0.9)
    axes[1].set_ylim(-0.02, 1.02)
    figure.set_label(f"Line charts of residual transport. {'; '.join(words)}.")
    return figure


def contributions(trained: Sequence[ProbeResult], step_0: Sequence[ProbeResult] = ()) -> Figure:
    """Norm of each branch's output beside what it reads, left, and its share of the end, right."""
    check_probe("branch_norms", trained, step_0)
    figure, axes = new_figure(2, figsize=(11.0, 4.2))
    norm = _Curve("relative_norm", "|output| / |read|", "sublayer")
    share = _Curve("end_share", "share of the end", "source (0 the embedding)")
    words = [*_panel(axes[0], norm, trained, step_0), *_panel(axes[1], share, trained, step_0)]
    figure.set_label(f"Line charts of branch contributions. {'; '.join(words)}.")
    return figure


def _panel(ax: Axes, curve: _Curve, trained: Sequence[ProbeResult], step_0: Sequence[ProbeResult]) -> list[str]:
    """Draw one panel and say in words what it shows."""
    words = []
    for group, is_trained in ((trained, True), (step_0, False)):
        for result in group:
            look, y = style(result.provenance["design"]), curve.pick(result[curve.array])
            x = np.arange(len(y))
            there = ~np.isnan(y)
            ax.plot(x[there], y[there], label=_label(result, is_trained), **_line(look, is_trained, marker=True))
            if result.n_documents > 1:
                low, high = result.bootstrap(curve.array, curve.pick)
                alpha = 0.18 if is_trained else 0.08
                ax.fill_between(x[there], low[there], high[there], color=look.color, alpha=alpha, linewidth=0)
            first, last = y[there][0], y[there][-1]
            words.append(f"{_label(result, is_trained)}, {curve.ylabel}: {first:.3g} to {last:.3g}")
    ax.set(xlabel=curve.xlabel, ylabel=curve.ylabel)
    ax.legend(fontsize="small", frameon=False)
    return words


def _label(result: ProbeResult, is_trained: bool) -> str:
    return title_of(result) + ("" if is_trained else ", step 0")


def _line(look: Style, is_trained: bool, *, marker: bool = False) -> dict[str, Any]:
    line: dict[str, Any] = {
        "color": look.color,
        "linestyle": look.linestyle if is_trained else ":",
        "linewidth": 1.6 if is_trained else 0.9,
    }
    if marker:
        line |= {"marker": look.marker, "markersize": 4, "markerfacecolor": look.color if is_trained else "white"}
    return line
