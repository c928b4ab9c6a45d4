"""Do residual streams stay different? Composed maps, their effective rank, and stream overlap (the paper's Figure 10).

    P_k = M_k .. M_2 M_1, the residual maps of the first k sublayers, multiplied token by token
    effective rank = exp(entropy of p),   p = s / sum(s) (Roy and Vetterli 2007) or s^2 / sum(s^2), s singular values

For doubly stochastic maps P tends to the uniform matrix, of rank one: in the closed form M = (1 - N e) I + e 1 1^T the
singular values of P_k are 1 and (1 - N e)^k, N - 1 times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depthbench.probes.measure import Tick, measure
from depthbench.probes.results import ProbeResult
from depthbench.probes.views import walk
from depthbench.probes.walk import Walk


def residual_transport(model: nn.Module, tokens: Any, **running: Any) -> ProbeResult:
    """Effective rank and spectrum of the composed residual maps of HC and mHC, and how alike the streams become.

    effective_rank         (J + 1): of P_k with p = s / sum(s), mean over tokens; k = 0 is the identity, rank N
    effective_rank_energy  (J + 1): with p = s^2 / sum(s^2)
    spectrum               (J + 1, N): singular values of P_k, largest first, mean over tokens
    stream_overlap         (J + 1): mean |cos| between two streams of the state after k sublayers; 1 is collinear
    gain                   (J + 1): largest row sum of |P_k|, mean over tokens

    Raises ValueError for a design without streams. `running`: batch_size, progress, cache.
    """
    n = 2 * walk(model).n_layers
    ends = walk(model).model.residual_ends
    streams = list(range(getattr(ends, "n_streams", 1)))
    axis = ("after_sublayers",)
    return measure(
        "residual_transport",
        model,
        tokens,
        _of_batch,
        axes={
            "effective_rank": axis,
            "effective_rank_energy": axis,
            "stream_overlap": axis,
            "gain": axis,
            "spectrum": (*axis, "singular_value"),
        },
        units={
            "effective_rank": "dimensions",
            "effective_rank_energy": "dimensions",
            "stream_overlap": "|cos|",
            "gain": "factor",
            "spectrum": "factor",
        },
        labels={"after_sublayers": list(range(n + 1)), "singular_value": streams},
        options={},
        units_per_batch=n,
        **running,
    )


def effective_rank(singular_values: Tensor, *, energy: bool = False) -> Tensor:
    """exp(entropy) of singular values (..., N) over their sum, or with `energy` of their squares; 0 for zeros."""
    s = singular_values.square() if energy else singular_values
    total = s.sum(-1, keepdim=True)
    p = s / total.clamp_min(torch.finfo(s.dtype).tiny)
    return torch.where(total.squeeze(-1) > 0, (-torch.xlogy(p, p).sum(-1)).exp(), 0.0)


def stream_overlap(streams: Tensor) -> Tensor:
    """Mean |cos| (...) over pairs of streams (..., N, D); 1 for a single stream."""
    unit = torch.nn.functional.normalize(streams.double(), dim=-1)
    n = unit.shape[-2]
    if n == 1:
        return unit.new_ones(unit.shape[:-2])
    cosines = (unit @ unit.transpose(-1, -2)).abs()
    return (cosines.sum((-2, -1)) - cosines.diagonal(dim1=-2, dim2=-1).sum(-1)) / (n * (n - 1))


def _of_batch(path: Walk, ids: Tensor, tick: Tick) -> dict[str, np.ndarray]:
    state = path.open(ids)
    first = path.residual_map(path.step(0, state))
    composed = torch.eye(first.shape[-1], dtype=torch.float64, device=first.device).expand_as(first)
    rows: dict[str, list[np.ndarray]] = {}

    def note(state: Tensor) -> None:
        values = torch.linalg.svdvals(composed)  # (B, T, N)
        found = {
            "effective_rank": effective_rank(values),
            "effective_rank_energy": effective_rank(values, energy=True),
            "stream_overlap": stream_overlap(state),
            "gain": composed.abs().sum(-1).amax(-1),
            "spectrum": values,
        }
        for name, value in found.items():
            rows.setdefault(name, []).append(value.mean(1).cpu().numpy())

    note(state)
    for moment in path.moments(state):
        composed = path.residual_map(moment) @ composed
        note(moment.after)
        tick()
    return {name: np.stack(values, 1) for name, values in rows.items()}
