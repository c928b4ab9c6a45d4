"""When is the final prediction there? LogitLens: the head on the state after each layer (the paper's Figure 8, right).

Two lenses, which differ for streams and for sources: `close` ends the model early (sum of the streams, the final query
on the sources so far); `next` takes what the next attention reads. Both are normed by the final norm, anew in every
layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from depthbench.designs.base import at_least_fp32
from depthbench.probes.losses import check_length
from depthbench.probes.measure import Tick, measure
from depthbench.probes.results import ProbeResult
from depthbench.probes.views import walk
from depthbench.probes.walk import Walk

LENSES = ("close", "next")
_ARRAYS = ("kl_final_to_layer", "kl_layer_to_final", "loss", "top1_agreement", "top5_overlap")
_AXES = ("lens", "after_layers")


def logit_lens(model: nn.Module, tokens: Any, **running: Any) -> ProbeResult:
    """What the head makes of the state after l = 0 .. L layers, against what it makes of the end.

    kl_final_to_layer  sum_v p_L(v) (log p_L(v) - log p_l(v)) in nats, p_L the model's output: the paper's direction
    kl_layer_to_final  the other direction
    loss               cross-entropy of the next token, nats
    top1_agreement, top5_overlap   share of the most likely token, of the five most likely, that is the same

    Arrays (2 lenses, L + 1), means over all positions but the last. `running`: batch_size, progress, cache.
    """
    n = walk(model).n_layers
    return measure(
        "logit_lens",
        model,
        tokens,
        _of_batch,
        axes=dict.fromkeys(_ARRAYS, _AXES),
        units={name: "share" if name.startswith("top") else "nats per token" for name in _ARRAYS},
        labels={"lens": list(LENSES), "after_layers": list(range(n + 1))},
        options={},
        units_per_batch=n + 1,
        **running,
    )


def lens_logits(path: Walk, h: Tensor) -> Tensor:
    """log p (B, T, V) of what a lens sees (B, T, D), in at least float32."""
    return at_least_fp32(path.logits(h)).log_softmax(-1)


def _of_batch(path: Walk, ids: Tensor, tick: Tick) -> dict[str, np.ndarray]:
    check_length(ids)
    n, targets = path.n_layers, ids[:, 1:].unsqueeze(-1)
    seen: list[dict[str, Tensor]] = []
    state = path.open(ids)
    for moment in path.moments(state):
        if moment.j % 2 == 0:
            seen.append(path.lenses(moment.j // 2, moment.before, moment.raw))
        state = moment.after
    seen.append(path.lenses(n, state))
    final = lens_logits(path, seen[n]["close"][:, :-1])
    final_top = final.topk(min(5, final.shape[-1]), -1).indices
    out = {name: np.zeros((len(ids), len(LENSES), n + 1)) for name in _ARRAYS}
    for l in range(n + 1):
        for k, lens in enumerate(LENSES):
            if k and seen[l][lens] is seen[l][LENSES[0]]:
                values = [out[name][:, 0, l] for name in _ARRAYS]
            else:
                log_p = lens_logits(path, seen[l][lens][:, :-1])
                values = [v.double().mean(1).cpu().numpy() for v in _compare(log_p, final, final_top, targets)]
            for name, value in zip(_ARRAYS, values, strict=True):
                out[name][:, k, l] = value
        tick()
    return out


def _compare(log_p: Tensor, final: Tensor, final_top: Tensor, targets: Tensor) -> list[Tensor]:
    """The five measures of each position, (B, T - 1) each."""
    top = log_p.topk(final_top.shape[-1], -1).indices
    shared = (top.unsqueeze(-1) == final_top.unsqueeze(-2)).any(-1)
    return [
        (final.exp() * (final - log_p)).sum(-1),
        (log_p.exp() * (log_p - final)).sum(-1),
        -log_p.gather(-1, targets).squeeze(-1),
        (top[..., 0] == final_top[..., 0]).to(log_p.dtype),
        shared.to(log_p.dtype).mean(-1),
    ]
