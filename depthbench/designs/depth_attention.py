"""OLMo-core's attention with depth slots in its softmax: the branch that MoDA supplies.

The only file beside `model.py` that meets OLMo-core's model classes.

Legend: B batch, T position, D d_model, K key-value heads, G query heads of each, E head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from olmo_core.nn.attention import Attention
from torch import Tensor

from depthbench.designs.depth_softmax import Slot, attend


class DepthAttention(Attention):
    """Causal attention whose one softmax also runs over slots that earlier layers left at the same token."""

    @staticmethod
    def of(stock: Attention) -> DepthAttention:
        """The same module, parameters and all, with this forward."""
        stock.__class__ = DepthAttention
        assert isinstance(stock, DepthAttention)
        return stock

    def forward(  # type: ignore[override]
        self, x: Tensor, *, own: Slot, slots: tuple[Slot, ...], rotate_depth_keys: bool, **kwargs: Any
    ) -> Tensor:
        """Attend from x (B, T, D) to the keys and values it projects to, `own`, and to `slots`, (B, T, K * E) each.

        Raises NotImplementedError for what OLMo-core passes beside (document masks, caches).
        """
        if given := [name for name, value in kwargs.items() if value is not None]:
            raise NotImplementedError(f"attention with depth slots does not take {', '.join(given)}")
        assert self.rope is not None
        raw_queries, raw_keys, values = (
            y.unflatten(-1, (-1, self.head_dim)) for y in (self.w_q(x), *own)
        )  # (B, T, heads, E)
        queries, keys = self.rope(raw_queries, raw_keys, head_first=False)
        if not slots:
            return self.w_out(self.sdpa(queries, keys, values).flatten(2))

        # The slots stand at the query's own position, so that rotating both and rotating neither is the same.
        depth_queries = raw_queries if rotate_depth_keys else queries
        group = self.n_heads // self.n_kv_heads
        keys, values = (y.repeat_interleave(group, 2) if group > 1 else y for y in (keys, values))
        return self.w_out(attend(queries, keys, values, depth_queries, slots).flatten(2))


def plain(q: Tensor, k: Tensor, v: Tensor, depth_q: Tensor, slots: Sequence[Slot]) -> Tensor:
    """`attend`, the equation as it stands, with its matrix of scores: o (B, T, H, E); slots (B, T, K * E) each."""
    heads, width, length = *q.shape[-2:], q.shape[1]
    depth_keys, depth_values = (
        torch.stack([x.unflatten(-1, (-1, width)) for x in part], -2) for part in zip(*slots, strict=True)
    )  # (B, T, K, S, E)
    group = heads // depth_keys.shape[2]
    depth_keys, depth_values = (x.repeat_interleave(group, 2) for x in (depth_keys, depth_values))
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))  # (B, H, T, E)
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (queries @ keys.transpose(-1, -2)).masked_fill(future, -torch.inf)
    depth_scores = (depth_q.unsqueeze(-2) * depth_keys).sum(-1).transpose(1, 2)  # (B, H, T, S)
    weights = (torch.cat([scores, depth_scores], -1) * width**-0.5).softmax(-1)
    over_time, over_depth = weights.split([length, len(slots)], -1)
    over_depth = over_depth.transpose(1, 2).unsqueeze(-1)  # (B, T, H, S, 1)
    return (over_time @ values).transpose(1, 2) + (over_depth * depth_values).sum(-2)
