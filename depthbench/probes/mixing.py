"""Do early layers use what earlier layers wrote? Depth mixing and the dead segment (the paper's Figure 9).

Within a block of Block AttnRes, the softmax chooses between the sums of blocks before and the running sum of this one.
Where the running sum gets next to no weight, the layers of the block all read the same thing, and adding layers there
adds nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from depthbench.probes.measure import Tick, measure
from depthbench.probes.results import ProbeResult
from depthbench.probes.views import walk
from depthbench.probes.walk import Walk


def depth_mixing(model: nn.Module, tokens: Any, **running: Any) -> ProbeResult:
    """Softmax weight of every source in every mixture of Full or Block AttnRes, mean over tokens.

    weight       (J + 1, S): mixtures of the sublayers and of the end, over the embedding (source 0) and the others;
                 NaN for a source that is not there yet
    running_sum  (J + 1): weight of the block's own running sum; NaN where there is none (a block's first sublayer)
    embedding    (J + 1): weight of the embedding

    `dead_segment` reads the dead segment off it. Raises ValueError for a design that mixes no sources.
    """
    n = 2 * walk(model).n_layers + 1
    mixes = getattr(walk(model).blocks[0].attention_residual, "source", None)
    last = getattr(walk(model).blocks[-1].feed_forward_residual, "source", n - 1) if mixes is not None else n - 1
    return measure(
        "depth_mixing",
        model,
        tokens,
        _of_batch,
        axes={"weight": ("mixture", "source"), "running_sum": ("mixture",), "embedding": ("mixture",)},
        units=dict.fromkeys(("weight", "running_sum", "embedding"), "share"),
        labels={"mixture": [*range(n - 1), "end"], "source": ["embedding", *range(1, last + 1)]},
        options={},
        units_per_batch=n,
        **running,
    )


def dead_segment(result: ProbeResult, threshold: float = 0.05) -> int:
    """Leading layers whose running sum gets less than `threshold` in every sublayer that has one, by mean weight.

    The first sublayer of a block has no running sum and is no evidence. For Full AttnRes there is none at all: 0.
    """
    return dead_layers(result["running_sum"][:-1], threshold)


def dead_layers(running_sum: np.ndarray, threshold: float) -> int:
    """The same of weights (J,), NaN where there is no running sum."""
    by_layer = running_sum.reshape(-1, 2)
    seen = ~np.isnan(by_layer)
    dead = 0
    for layer, (weights, there) in enumerate(zip(by_layer, seen, strict=True)):
        if there.any() and (weights[there] >= threshold).any():
            break
        if there.any():
            dead = layer + 1
    return dead


def _of_batch(path: Walk, ids: Tensor, tick: Tick) -> dict[str, np.ndarray]:
    n = 2 * path.n_layers + 1
    state, rows, running = path.open(ids), [], np.full((len(ids), n), np.nan)

    def note(j: int, state: Any) -> None:
        weights, index = path.depth_weights(j, state)
        rows.append(weights.mean(-1).T.cpu().numpy())  # (B, S)
        if index is not None:
            running[:, j] = rows[-1][:, index]
        tick()

    for moment in path.moments(state):
        note(moment.j, moment.before)
        state = moment.after
    note(n - 1, state)
    weight = np.full((len(ids), n, rows[-1].shape[1]), np.nan)
    for j, row in enumerate(rows):
        weight[:, j, : row.shape[1]] = row
    return {"weight": weight, "running_sum": running, "embedding": weight[:, :, 0].copy()}
