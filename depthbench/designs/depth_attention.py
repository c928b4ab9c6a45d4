"""OLMo-core's attention with depth slots in its softmax: the branch that MoDA supplies.

The only file beside `model.py` that meets OLMo-core's model classes.

Legend: B batch, T position, D d_model, K key-value heads, G query heads of each, E head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from olmo_core.nn.attention import Attention
from torch import Tensor

from depthbench.designs.base import at_least_fp32
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
        if not torch.compiler.is_compiling():
            group = self.n_heads // self.n_kv_heads
            keys, values = (y.repeat_interleave(group, 2) if group > 1 else y for y in (keys, values))
            return self.w_out(attend(queries, keys, values, depth_queries, slots).flatten(2))

        def by_group(y: Tensor) -> Tensor:  # (B, T, heads, E) -> (B, K, heads per K, T, E)
            return y.unflatten(2, (self.n_kv_heads, -1)).permute(0, 2, 3, 1, 4)

        depth_keys, depth_values = (
            [by_group(y.unflatten(-1, (-1, self.head_dim))) for y in part] for part in zip(*slots, strict=True)
        )
        attended = joint_softmax(
            by_group(queries), by_group(keys), by_group(values), by_group(depth_queries), depth_keys, depth_values
        )
        return self.w_out(attended.permute(0, 3, 1, 2, 4).flatten(2))


def joint_softmax(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    depth_queries: Tensor,
    depth_keys: list[Tensor],
    depth_values: list[Tensor],
) -> Tensor:
    """Values mixed by one softmax over the causal keys and over each token's own slots.

    Shapes: queries, depth_queries and the result (B, K, G, T, E); keys, values and each slot (B, K, 1, T, E).
    Memory: one (B, K, G, T, T + slots) array is kept for the backward pass; the slots are not copied.
    """
    scale, length = queries.shape[-1] ** -0.5, queries.shape[-2]
    future = torch.ones(length, length, dtype=torch.bool, device=queries.device).triu(1)
    scores = (queries * scale @ keys.transpose(-1, -2)).masked_fill_(future, -torch.inf)
    depth_queries = depth_queries * scale
    depth_scores = torch.stack([(depth_queries * key).sum(-1) for key in depth_keys], -1)  # (B, K, G, T, slots)
    weights = at_least_fp32(torch.cat([scores, depth_scores], -1)).softmax(-1).to(values.dtype)
    over_time, over_depth = weights.split([length, len(depth_keys)], -1)
    attended = over_time @ values
    for weight, value in zip(over_depth.split(1, -1), depth_values, strict=True):
        attended = attended + weight * value
    return attended
