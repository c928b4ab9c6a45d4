"""One softmax over the causal keys and over depth slots, without a score matrix: two parts joined by their log-sums.

    o = e^{l1 - l} o1 + sum_i e^{s_i - l} v_i,    s_i = q' . k_i / sqrt(E),    l = log(e^{l1} + sum_i e^{s_i})

o1 and l1 are flash attention's output and log-sum-exp over the sequence. Its backward pass needs of the softmax only
<do, o> and e^{score - l}: given the joint o and l it returns the gradients of the joint softmax.

Kept for backward: queries, keys, values, slots (alive anyway), o, l. Nothing of size T x T.

Legend: B batch, T position, H heads, K key-value heads, G query heads of each, E head_dim, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench.designs.base import no_autocast

Slot = tuple[Tensor, Tensor]  # keys without rotation, and values, of one earlier sublayer: (B, T, K * E) each

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(q: Tensor, k: Tensor, v: Tensor, depth_q: Tensor, slots: list[Tensor]) -> Tensor:
    """o (B, T, H, E) on a CPU; slots: the S keys, then the S values, (B, T, K, E); the others like o."""
    return _Attend.apply(q, k, v, depth_q, *slots)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, depth_q: Tensor, *slots: Tensor) -> Tensor:
        scale = q.shape[-1] ** -0.5
        with no_autocast(q):
            depth_q, keys, values = _by_group(depth_q, slots)
            over_time, log_sum = _flash(*_heads_first(q, k, v), 0.0, True, scale=scale)
            log_sum = log_sum.transpose(1, 2)  # (B, T, H)
            scores = _dots(depth_q, keys).to(log_sum.dtype).mul_(scale)  # (S, B, T, H)
            joint = torch.logaddexp(log_sum, scores.logsumexp(0))
            o = over_time.transpose(1, 2) * (log_sum - joint).exp_().unsqueeze(-1).to(q.dtype)
            grouped = o.view(depth_q.shape)
            for weight, value in zip(scores.sub_(joint).exp_().to(q.dtype), values, strict=True):
                grouped.addcmul_(weight.view(*grouped.shape[:-1], 1), value)
        ctx.save_for_backward(q, k, v, depth_q, o, joint, *slots)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, depth_q, o, joint, *slots = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        with no_autocast(q):
            log_sum = joint.transpose(1, 2).contiguous()
            over_time = _flash_backward(*_heads_first(do, q, k, v, o), log_sum, 0.0, True, scale=scale)
            dq, dk, dv = (x.transpose(1, 2) for x in over_time)
            grouped, keys, values = _by_group(do, slots)  # depth_q has its groups
            p = _dots(depth_q, keys).to(joint.dtype).mul_(scale).sub_(joint).exp_()  # (S, B, T, H)
            ds = _dots(grouped, values).to(p.dtype).sub_(_dots(do, [o])[0]).mul_(p).mul_(scale).to(q.dtype)
            ds, p = (x.view(len(keys), *depth_q.shape[:-1], 1) for x in (ds, p.to(q.dtype)))
            ddepth_q = torch.zeros_like(depth_q)
            for d, key in zip(ds, keys, strict=True):
                ddepth_q.addcmul_(d, key)
            dkeys = [_over_group(d * depth_q) for d in ds]
            dvalues = [_over_group(weight * grouped) for weight in p]
        return (dq, dk, dv, ddepth_q.view(q.shape), *dkeys, *dvalues)


def _heads_first(*xs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.transpose(1, 2) for x in xs)


def _by_group(x: Tensor, slots: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """x (B, T, K, G, E); the slots' keys and values (B, T, K, 1, E)."""
    parts = [slot.unsqueeze(3) for slot in slots]
    return x.unflatten(2, (slots[0].shape[2], -1)), parts[: len(slots) // 2], parts[len(slots) // 2 :]


def _over_group(x: Tensor) -> Tensor:
    """(B, T, K, G, E) -> (B, T, K, E), the sum."""
    return x.squeeze(3) if x.shape[3] == 1 else x.sum(3)


def _dots(x: Tensor, others: list[Tensor]) -> Tensor:
    """x . y (S, B, T, H) of x (B, T, ..., E) and S tensors y that broadcast to it."""
    product = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return torch.stack([torch.mul(x, other, out=product).sum(-1).flatten(2) for other in others])
