"""How large is what a branch adds, beside what it reads, and how much of the end is its own? Branch contribution norms.

After Csordas et al. 2025 (2505.13898), with the share of the end beside it, which means the same in every design.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from depthbench.probes.measure import Tick, measure
from depthbench.probes.paths import read_parts
from depthbench.probes.results import ProbeResult
from depthbench.probes.views import walk
from depthbench.probes.walk import Walk

_SMALLEST = 1e-30


def branch_norms(model: nn.Module, tokens: Any, **running: Any) -> ProbeResult:
    """Norms of branch outputs and reads, and each output's share of the end, mean over tokens.

    output_rms, read_rms  (J): root mean square over the width of y_j and of what sublayer j reads before its norm
    relative_norm         (J): |y_j| / |read_j|
    cosine                (J): cos(y_j, read_j): writes along the state (1), against it (-1), or anew (0)
    end_share             (J + 1): <part_i, end> / |end|^2 of the embedding and of each output in the end, coefficients
                          and norms held (`read_parts`); the shares sum to one

    Sublayer 2l is the attention of layer l, 2l + 1 its feed-forward. `running`: batch_size, progress, cache.
    """
    n = 2 * walk(model).n_layers
    names = ("output_rms", "read_rms", "relative_norm", "cosine")
    return measure(
        "branch_norms",
        model,
        tokens,
        _of_batch,
        axes={**dict.fromkeys(names, ("sublayer",)), "end_share": ("source",)},
        units={**dict.fromkeys(names[:2], "rms"), "relative_norm": "ratio", "cosine": "cosine", "end_share": "share"},
        labels={"sublayer": list(range(n)), "source": ["embedding", *range(n)]},
        options={},
        units_per_batch=n + 1,
        **running,
    )


def _of_batch(path: Walk, ids: Tensor, tick: Tick) -> dict[str, np.ndarray]:
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("output_rms", "read_rms", "relative_norm", "cosine")}
    for moment in path.moments(path.open(ids)):
        y, raw = moment.y.double(), moment.raw.double()
        y_size, raw_size = (torch.linalg.vector_norm(x, dim=-1) for x in (y, raw))  # (B, T)
        found = {
            "output_rms": y_size / y.shape[-1] ** 0.5,
            "read_rms": raw_size / raw.shape[-1] ** 0.5,
            "relative_norm": y_size / raw_size.clamp_min(_SMALLEST),
            "cosine": (y * raw).sum(-1) / (y_size * raw_size).clamp_min(_SMALLEST),
        }
        for name, value in found.items():
            rows[name].append(value.mean(1).cpu().numpy())
        tick()
    out = {name: np.stack(values, 1) for name, values in rows.items()}
    return {**out, "end_share": end_share(path, ids).mean(1).cpu().numpy()}


def end_share(path: Walk, ids: Tensor) -> Tensor:
    """<part_i, end> / |end|^2 of each token, (B, T, J + 1)."""
    for end, parts in read_parts(path, ids):
        last = end.double(), parts
    end, parts = last
    size = end.square().sum(-1).clamp_min(_SMALLEST)
    return torch.stack([(part * end).sum(-1) / size for part in parts], -1)
