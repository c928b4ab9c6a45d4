"""What does the model lose with one layer? Layer pruning (the paper's Figure 8, left)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from depthbench.probes.losses import check_length, window_loss
from depthbench.probes.measure import Tick, measure
from depthbench.probes.results import ProbeResult
from depthbench.probes.surgery import skipped
from depthbench.probes.views import walk
from depthbench.probes.walk import Skip, Walk, check_choice


def layer_pruning(model: nn.Module, tokens: Any, *, skip: Skip = "silent", **running: Any) -> ProbeResult:
    """Loss of the model with each layer left out, in nats per token.

    Arrays: `loss_increase` (L), `pruned_loss` (L), `loss` (). Layers count from 0. A pass starts from the state before
    the layer left out. `skip`: see `walk`; `running`: batch_size, progress, cache. For other measures of a model see
    `pruned_metric`.
    """
    check_choice("skip", skip, Skip)
    n = walk(model).n_layers

    def of_batch(path: Walk, ids: Tensor, tick: Tick) -> dict[str, np.ndarray]:
        check_length(ids)
        state, pruned = path.open(ids), np.zeros((len(ids), n))
        for l in range(n):
            pruned[:, l] = window_loss(path, path.run(path.skip(l, state, skip), l + 1), ids)
            state = path.run(state, l, l + 1)
            tick()
        loss = window_loss(path, state, ids)
        return {"loss_increase": pruned - loss[:, None], "pruned_loss": pruned, "loss": loss}

    names = ("loss_increase", "pruned_loss", "loss")
    return measure(
        "layer_pruning",
        model,
        tokens,
        of_batch,
        axes={"loss_increase": ("layer",), "pruned_loss": ("layer",), "loss": ()},
        units=dict.fromkeys(names, "nats per token"),
        labels={"layer": list(range(n))},
        options={"skip": skip},
        units_per_batch=n,
        **running,
    )


@torch.no_grad()
def pruned_metric(
    model: nn.Module,
    metric: Callable[[nn.Module], float],
    *,
    skip: Skip = "silent",
    layers: list[int] | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Any measure of a model, such as accuracy on ARC-Easy, with each layer left out.

    `metric(model)` gives a number. One row a layer: `layer`, `value`, `change` against the whole model; the whole
    model's is in `.attrs["whole"]`. An accuracy over n questions has a standard error of sqrt(p (1 - p) / n), one point
    for ARC-Easy: prefer the loss for small effects.
    """
    whole = float(metric(model))
    rows = []
    for layer in tqdm(layers or range(walk(model).n_layers), desc="layers left out", disable=not progress, leave=False):
        with skipped(model, layer, skip):
            value = float(metric(model))
        rows.append({"layer": layer, "value": value, "change": value - whole})
    frame = pd.DataFrame(rows)
    frame.attrs["whole"] = whole
    return frame
