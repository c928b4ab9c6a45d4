"""How did one run go? Its training loss and gradient norm over its tokens."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from depthbench.figures.styles import need, new_figure


def training_curve(history: pd.DataFrame) -> Figure:
    """One run over its tokens: training loss in nats, and beside it the gradient norm before clipping, on a log axis.

    `history` has `tokens`, `loss` and `grad_norm`, one row a step. Raises ValueError where they are missing.
    """
    need(history, ("tokens", "loss", "grad_norm"), "history")
    figure, axes = new_figure(2, figsize=(9.6, 3.2))
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
