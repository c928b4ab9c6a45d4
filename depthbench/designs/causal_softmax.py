"""Causal attention with its log-sum-exp, and its backward pass for a softmax that runs over more than the sequence.

    o_t = sum_{s <= t} e^{x_ts - l_t} v_s,   l_t = log sum_{s <= t} e^{x_ts},   x = q . k / sqrt(E)

The backward pass needs of the softmax only <do, o> and e^{x - l}: given the o and l of a softmax that has more terms it
returns the gradients that q, k and v have in it. PyTorch has the operation for a CPU, and for CUDA in half precision
(flash) and in float32 (memory-efficient); nothing of size T x T is kept. Elsewhere it is written out.

Legend: B batch, T position, H heads, E head_dim. Only the CPU's operation is tested by its numbers here; those of CUDA
by their shapes and arguments, on fake tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

aten: Any = torch.ops.aten
Saved = tuple[Any, ...]


def forward(qkv: tuple[Tensor, ...], scale: float) -> tuple[Tensor, Tensor, Saved]:
    """o (B, H, T, E), l (B, H, T) in at least float32, and what `backward` wants besides; q, k, v like o."""
    q, k, v = qkv
    kind, width = _kind(q), q.shape[-1]
    if kind == "cpu":
        return (*aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale), ())
    if kind == "flash":
        q, k, v = (_padded(x) for x in (q, k, v))
        o, log_sum, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scale)
        return o.narrow(-1, 0, width), log_sum, tuple(rest[:6])
    if kind == "efficient":
        q, k, v = (_padded(x) for x in (q, k, v))
        o, log_sum, *rest = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True, scale=scale)
        return o.narrow(-1, 0, width), log_sum.narrow(-1, 0, q.shape[2]), (log_sum.shape[2], *rest)
    scores = _scores(q, k, scale)
    log_sum = scores.logsumexp(-1)
    return (scores - log_sum.unsqueeze(-1)).exp().to(v.dtype) @ v, log_sum, ()


def backward(tensors: tuple[Tensor, ...], log_sum: Tensor, scale: float, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv (B, H, T, E) from do, q, k, v, o, for the o and l of the whole softmax."""
    do, q, k, v, o = tensors
    kind, width = _kind(q), q.shape[-1]
    if kind == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(
            do, q, k, v, o, log_sum.contiguous(), 0.0, True, scale=scale
        )
    if kind == "flash":
        do, q, k, v, o = (_padded(x) for x in (do, q, k, v, o))
        grads = aten._scaled_dot_product_flash_attention_backward(
            do, q, k, v, o, log_sum.contiguous(), *saved[:4], 0.0, True, *saved[4:], scale=scale
        )
    elif kind == "efficient":
        do, q, k, v, o = (_padded(x) for x in (do, q, k, v, o))
        rows, *seed = saved
        log_sum = pad(log_sum, (0, rows - log_sum.shape[-1]), value=float("inf"))
        mask = [True, True, True, False]
        grads = aten._scaled_dot_product_efficient_attention_backward(
            do, q, k, v, None, o, log_sum, *seed, 0.0, mask, True, scale=scale
        )[:3]
    else:
        p = (_scores(q, k, scale) - log_sum.unsqueeze(-1)).exp().to(v.dtype)
        ds = p * (do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True)) * scale
        grads = ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ do
    dq, dk, dv = (x.narrow(-1, 0, width) for x in grads)
    return dq, dk, dv


def _kind(q: Tensor) -> str:
    if q.device.type == "cpu":
        return "cpu"
    if q.device.type != "cuda" or q.dtype == torch.float64:
        return "plain"
    return "efficient" if q.dtype == torch.float32 else "flash"


def _padded(x: Tensor) -> Tensor:
    """The head width up to a multiple of eight, with zeros, as the kernels want it; the scale is given apart."""
    return pad(x, (0, -x.shape[-1] % 8))


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = q @ k.transpose(-1, -2) * scale
    return (scores if scores.dtype == torch.float64 else scores.float()).masked_fill(future, -torch.inf)
