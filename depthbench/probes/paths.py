"""How much of each earlier output is in what a sublayer reads? Residual-path weights (the paper's Figure 7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depthbench.probes.measure import Tick, measure
from depthbench.probes.results import ProbeResult
from depthbench.probes.views import scalar_of, walk
from depthbench.probes.walk import Walk

_AXES = ("reader", "source")
_SMALLEST = 1e-30


def path_weights(model: nn.Module, tokens: Any, **running: Any) -> ProbeResult:
    """Weight w_ij of the output of sublayer i in what sublayer j reads before its norm, coefficients held.

    Pre-LN 1; sources the softmax weight; streams w_ij = read_j^T M_{j-1} .. M_{i+1} write_i. Products are taken token
    by token and averaged after. Post-norms count with the factor nearest to what they did.

    weight        (J + 1, J + 1): readers are the sublayers and the end, sources the embedding (0) and outputs 1 .. J
    contribution  mean of |w_ij y_i| / |read|: outputs differ in size between designs, weights alone do not show it
    unexplained   (J + 1): |read - sum_i w_ij y_i| / |read|; 0 where weights are all there is to a design, as in all
                  but the post-norms, whose gains differ by channel

    NaN where a source is not before its reader. `running`: batch_size, progress, cache.
    """
    n = 2 * walk(model).n_layers + 1
    return measure(
        "path_weights",
        model,
        tokens,
        _of_batch,
        axes={"weight": _AXES, "contribution": _AXES, "unexplained": ("reader",)},
        units={"weight": "factor", "contribution": "ratio of norms", "unexplained": "ratio of norms"},
        labels={"reader": [*range(n - 1), "end"], "source": ["embedding", *range(n - 1)]},
        options={},
        units_per_batch=n,
        **running,
    )


def token_weights(path: Walk, ids: Tensor) -> Iterator[tuple[Tensor, Tensor, list[Tensor]]]:
    """For each reader in order: its read (B, T, D), weights (B, T, sources so far), and what the sources wrote."""
    state = path.open(ids)
    held = path.slots(state).expand(*ids.shape, -1).unsqueeze(-1)  # (B, T, N, sources)
    written = [_embedding(path, state)]
    for moment in path.moments(state):
        flow = path.flow(moment)
        yield moment.raw, _reading(flow.read, held), written
        held = torch.cat([held if flow.move is None else flow.move @ held, flow.write.unsqueeze(-1)], -1)
        if (factor := scalar_of(flow, moment)) is not None:
            held = held * factor[..., None, None]
        written = [*written, flow.written]
        state = moment.after
    yield path.close(state), _reading(path.closing(state), held), written


def read_parts(path: Walk, ids: Tensor) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """For each reader in order: its read (B, T, D) and its parts, one a source, in float64, exact in every design.

    The parts sum to the read. Post-norms act on each part with their statistics held.
    """
    state = path.open(ids)
    if not _normed(path, state):
        for raw, weights, written in token_weights(path, ids):
            yield raw, [weights[..., i, None] * y.double() for i, y in enumerate(written)]
        return
    parts = [_embedding(path, state).double()]
    for moment in path.moments(state):
        flow = path.flow(moment)
        yield moment.raw, [flow.read * part for part in parts]
        assert flow.move is not None
        parts = [*(flow.move[..., 0] * part for part in parts), flow.write * flow.written.double()]
        parts = parts if flow.norm is None else [flow.norm(part) for part in parts]
        state = moment.after
    yield path.close(state), [path.closing(state) * part for part in parts]


def _of_batch(path: Walk, ids: Tensor, tick: Tick) -> dict[str, np.ndarray]:
    n = 2 * path.n_layers + 1
    out = {name: np.full((len(ids), n, n), np.nan) for name in ("weight", "contribution")}
    unexplained = np.zeros((len(ids), n))
    sizes: list[Tensor] = []
    for j, (raw, weights, written) in enumerate(token_weights(path, ids)):
        sizes += [torch.linalg.vector_norm(y.double(), dim=-1) for y in written[len(sizes) :]]
        size = torch.linalg.vector_norm(raw.double(), dim=-1).clamp_min(_SMALLEST)  # (B, T)
        rest = raw.double()
        for i, y in enumerate(written):
            out["weight"][:, j, i] = weights[..., i].mean(1).cpu().numpy()
            out["contribution"][:, j, i] = (weights[..., i].abs() * sizes[i] / size).mean(1).cpu().numpy()
            rest = rest - weights[..., i, None] * y.double()
        unexplained[:, j] = (torch.linalg.vector_norm(rest, dim=-1) / size).mean(1).cpu().numpy()
        tick()
    return {**out, "unexplained": unexplained}


def _reading(read: Tensor, held: Tensor) -> Tensor:
    """(B, T, N) on (B, T, N, sources) -> (B, T, sources)."""
    return (read.unsqueeze(-2) @ held).squeeze(-2)


def _embedding(path: Walk, state: Any) -> Tensor:
    """What the open state holds in its first slot, (B, T, D)."""
    first = state[0] if isinstance(state, tuple) else state
    return first[..., 0, :] if first.ndim == 4 else first


def _normed(path: Walk, state: Any) -> bool:
    """Whether some sublayer of the model norms what it remembers."""
    return any(path.flow(moment).norm is not None for moment in path.moments(state))
