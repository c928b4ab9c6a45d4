"""How much worse is the model with two layers exchanged? Permutation scores (the paper's Figure 6, right)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from depthbench.probes.losses import check_length, window_loss
from depthbench.probes.measure import Tick, measure
from depthbench.probes.results import ProbeResult
from depthbench.probes.surgery import swapped
from depthbench.probes.views import walk
from depthbench.probes.walk import Swap, Walk, check_choice

_AXES = ("layer_a", "layer_b")


def permutation_scores(
    model: nn.Module, tokens: Any, *, swap: Swap = "branches", first_layer: int = 0, **running: Any
) -> ProbeResult:
    """Relative change of the loss when layers a < b trade places: P(a, b) = |L_swap - L| / L, of the mean losses.

    Arrays: `loss` and `swapped_loss` in nats per token ((), and (L, L): NaN for a >= b), `score` (L, L), which holds
    |L_swap - L| / L document by document; `permutation_score` makes the paper's P from the two losses. Pairs of which
    one layer is before `first_layer` are left out. Costs at most two thirds of a pass a pair, about half for the pairs
    of the last three quarters: a pass starts from the state before a. `swap`: see `walk`.
    """
    check_choice("swap", swap, Swap)
    n = walk(model).n_layers
    if not 0 <= first_layer < n:
        raise ValueError(f"first_layer must be 0 to {n - 1}, got {first_layer}")
    pairs = [(a, b) for a in range(first_layer, n) for b in range(a + 1, n)]

    def of_batch(path: Walk, ids: Tensor, tick: Tick) -> dict[str, np.ndarray]:
        check_length(ids)
        states, state = [], path.open(ids)
        for l in range(n):
            states.append(state)
            state = path.run(state, l, l + 1)
        loss, after = window_loss(path, state, ids), np.full((len(ids), n, n), np.nan)
        tick()
        for a, b in pairs:
            with swapped(path.model, a, b, swap):
                after[:, a, b] = window_loss(path, path.run(states[a], a), ids)
            tick()
        score = np.abs(after - loss[:, None, None]) / loss[:, None, None]
        return {"score": score, "swapped_loss": after, "loss": loss}

    return measure(
        "permutation_scores",
        model,
        tokens,
        of_batch,
        axes={"score": _AXES, "swapped_loss": _AXES, "loss": ()},
        units={"score": "ratio", "swapped_loss": "nats per token", "loss": "nats per token"},
        labels={axis: list(range(n)) for axis in _AXES},
        options={"swap": swap, "first_layer": first_layer},
        units_per_batch=len(pairs) + 1,
        **running,
    )
