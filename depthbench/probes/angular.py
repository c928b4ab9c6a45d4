"""How far does the state turn between layer l and layer l + n? Angular distance (the paper's Figure 5)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depthbench.probes.measure import Tick, measure
from depthbench.probes.results import ProbeResult
from depthbench.probes.views import walk
from depthbench.probes.walk import Walk

_ARRAYS = ("all_tokens", "without_first", "last_token")


def angle_between(x: Tensor, y: Tensor) -> Tensor:
    """arccos(cos(x, y)) / pi of vectors (..., D), in [0, 1], in float64.

    As 2 atan2(|x' - y'|, |x' + y'|) of the unit vectors: exact where arccos of a rounded cosine is not, near 0 and 1.
    """
    return _between_units(_unit(x), _unit(y))


def _unit(x: Tensor) -> Tensor:
    return x.double() / torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)


def _between_units(x: Tensor, y: Tensor) -> Tensor:
    apart, along = torch.linalg.vector_norm(x - y, dim=-1), torch.linalg.vector_norm(x + y, dim=-1)
    return 2 * torch.atan2(apart, along) / math.pi


def angular_distance(model: nn.Module, tokens: Any, **running: Any) -> ProbeResult:
    """Mean angular distance d(i, j) = arccos(cos(z_i, z_j)) / pi between the states before layers i and j.

    z_0 is the embedding, z_L what the last layer left (`Walk.position`: streams laid end to end; for sources what the
    next reader mixes). Arrays (L + 1, L + 1), symmetric, 0 on the diagonal: `all_tokens`; `without_first` leaves out
    position 0, which attends to itself alone and is an outlier; `last_token` as in Gromov et al. 2024 (2403.17887).
    `tokens` (n, T) or Windows; `running`: batch_size, progress, cache (see `measure`).
    """
    layers = list(range(walk(model).n_layers + 1))
    return measure(
        "angular_distance",
        model,
        tokens,
        _of_batch,
        axes=dict.fromkeys(_ARRAYS, ("from_layer", "to_layer")),
        units=dict.fromkeys(_ARRAYS, "half turns"),
        labels={"from_layer": layers, "to_layer": layers},
        options={},
        units_per_batch=len(layers),
        **running,
    )


def _of_batch(path: Walk, ids: Tensor, tick: Tick) -> dict[str, np.ndarray]:
    z = [_unit(state) for state in positions(path, ids)]
    out = {name: np.zeros((len(ids), len(z), len(z))) for name in _ARRAYS}
    for i in range(len(z)):
        for j in range(i + 1, len(z)):
            d = _between_units(z[i], z[j])  # (B, T)
            rest = d[:, 1:] if d.shape[1] > 1 else d
            for name, value in zip(_ARRAYS, (d.mean(1), rest.mean(1), d[:, -1]), strict=True):
                out[name][:, i, j] = out[name][:, j, i] = value.cpu().numpy()
        tick()
    return out


def positions(path: Walk, ids: Tensor) -> list[Tensor]:
    """z_0 .. z_L of token ids (B, T)."""
    state, z = path.open(ids), []
    for moment in path.moments(state):
        if moment.j % 2 == 0:
            z.append(path.position(moment.j // 2, moment.before, moment.raw))
        state = moment.after
    return [*z, path.position(path.n_layers, state)]
