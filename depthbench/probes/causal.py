"""How much does leaving a layer out change what a later layer does? Causal scores (the paper's Figure 6, left)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depthbench.designs.base import at_least_fp32
from depthbench.probes.measure import Tick, measure
from depthbench.probes.results import ProbeResult
from depthbench.probes.views import walk
from depthbench.probes.walk import Skip, Walk, check_choice

_AXES = ("skipped_layer", "layer")
_SMALLEST = 1e-8


def causal_scores(model: nn.Module, tokens: Any, *, skip: Skip = "silent", **running: Any) -> ProbeResult:
    """Relative change of what layer l does when layer s < l is left out, mean over tokens of per-token ratios.

    score         |du| / max(|u|, 1e-8),  u_l = z_{l+1} - z_l (`Walk.position`), du its change: the paper's C(s, l)
    branch_score  the same with f_l, the outputs of both branches end to end, for u: like for like in all designs, where
                  u of a mixture over sources is the difference of two mixtures and may be small
    change, update: the numerator and the denominator of `score`, means of |du| and |u|

    Arrays (L, L), NaN where l <= s; `update` (L). Layers count from 0. Costs half of L + 1 passes: a pass with layer s
    left out starts from the state before s. `skip`: see `walk`. `running`: batch_size, progress, cache.
    """
    check_choice("skip", skip, Skip)
    layers = list(range(walk(model).n_layers))

    def of_batch(path: Walk, ids: Tensor, tick: Tick) -> dict[str, np.ndarray]:
        return _of_batch(path, ids, tick, skip)

    return measure(
        "causal_scores",
        model,
        tokens,
        of_batch,
        axes={"score": _AXES, "branch_score": _AXES, "change": _AXES, "update": ("layer",)},
        units={"score": "ratio", "branch_score": "ratio", "change": "norm", "update": "norm"},
        labels={"skipped_layer": layers, "layer": layers},
        options={"skip": skip},
        units_per_batch=len(layers) + 1,
        **running,
    )


def _of_batch(path: Walk, ids: Tensor, tick: Tick, skip: Skip) -> dict[str, np.ndarray]:
    n = path.n_layers
    whole = list(layers(path, path.open(ids), 0))
    sizes = [norm(layer.update) for layer in whole]  # (B, T)
    branch_sizes = [torch.hypot(norm(layer.attention), norm(layer.feed_forward)) for layer in whole]
    tick()
    out = {name: np.full((len(ids), n, n), np.nan) for name in ("score", "branch_score", "change")}
    for s in range(n):
        # Compared layer by layer, so that nothing of this pass is kept.
        for l, layer in enumerate(layers(path, path.skip(s, whole[s].before, skip), s + 1), s + 1):
            change = norm(layer.update.sub_(whole[l].update))
            branch = torch.hypot(
                norm(layer.attention - whole[l].attention), norm(layer.feed_forward - whole[l].feed_forward)
            )
            ratios = change / sizes[l].clamp_min(_SMALLEST), branch / branch_sizes[l].clamp_min(_SMALLEST)
            means = _mean(torch.stack([change, *ratios]))
            for name, value in zip(("change", "score", "branch_score"), means, strict=True):
                out[name][:, s, l] = value
        tick()
    return {**out, "update": np.stack([_mean(size) for size in sizes], 1)}


@dataclass(frozen=True)
class Layer:
    """A layer: the state before it, its update z_{l+1} - z_l (a tensor of its own), and the outputs of its branches."""

    before: Any
    update: Tensor
    attention: Tensor
    feed_forward: Tensor


def layers(path: Walk, state: Any, start: int) -> Iterator[Layer]:
    """The layers from the state before layer `start` on, in order."""
    before, z, ys = state, None, list[Tensor]()
    for moment in path.moments(state, start):
        if moment.j % 2 == 0:
            position = path.position(moment.j // 2, moment.before, moment.raw)
            if z is not None:
                yield Layer(before, position - z, *ys)
            before, z, ys = moment.before, position, []
        ys.append(moment.y)
        state = moment.after
        del moment  # or its tensors would live beside those of the next
    if z is not None:
        yield Layer(before, path.position(path.n_layers, state) - z, *ys)


def norm(x: Tensor) -> Tensor:
    """|x| over the last axis, in at least float32."""
    return torch.linalg.vector_norm(at_least_fp32(x), dim=-1)


def _mean(x: Tensor) -> np.ndarray:
    return x.double().mean(-1).cpu().numpy()
