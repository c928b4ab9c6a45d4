"""Softmax mixtures over many sources, in which no source is copied and each gets its gradient once.

    s_i = r_i (v_i . u),   r_i = rsqrt(mean(v_i^2) + eps),   p = softmax_i(s),   h = sum_i p_i v_i

is the whole of a read. With g the gradient of h, backward has, per token,

    ds_i = p_i (g . v_i - g . h)        du = sum_{i, tokens} ds_i r_i v_i
    dv_i = sum over reads of  p_i g + ds_i r_i u - ds_i s_i r_i^2 / D v_i

Ordinary autograd would make one array a source and read, O(J^2) of them, to add them up. Here a read only leaves what
dv_i needs with the source (the node of `remember`), and when backward comes to the source all its reads have done so:
dv_i is formed at once. A read hands autograd no gradient for a remembered source, only the order; a source that is not
one gets its gradient as usual. So a source may be used in any other way as well, and the tuple of sources is plain.

Kept for backward: the sources, which are alive anyway, and per read s (S, tokens), its log-sum and h.

Legend: B batch, T position, n = B T tokens, D d_model, S sources, J sublayers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench.designs.base import no_autocast

Share = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # g (n, D), v (n, D), p, ds r, ds s r^2 / D (n), u (D)


def remember(y: Tensor) -> Tensor:
    """The tensor as a source: itself in value, with a place where reads leave their part of its gradient."""
    return _Remember.apply(y) if y.requires_grad and torch.is_grad_enabled() else y


@torch.compiler.disable
def mix(sources: Sequence[Tensor], u: Tensor, eps: float) -> Tensor:
    """h (B, T, D) of sources (B, T, D) each; u (D) in at least float32."""
    nodes = tuple(source.grad_fn if isinstance(source.grad_fn, _NODE) else None for source in sources)
    return _Mix.apply(u, eps, nodes, *sources)


def weights(sources: Sequence[Tensor], u: Tensor, eps: float) -> Tensor:
    """p (S, B, T) of the same mixture, in u's type."""
    with no_autocast(u):
        logits = torch.stack([inverse_rms(source.to(u.dtype), eps) * (source.to(u.dtype) @ u) for source in sources])
        return logits.softmax(0)


def inverse_rms(v: Tensor, eps: float) -> Tensor:
    """r (...) of v (..., D)."""
    return torch.rsqrt(v.pow(2).mean(-1) + eps)


def collect(shares: list[Share]) -> Tensor:
    """dv (n, D), the sum of what reads left."""
    g, v, p, *_ = shares[0]
    dv = p.unsqueeze(-1) * g
    for g, _, p, *_ in shares[1:]:
        dv.addcmul_(p.unsqueeze(-1), g)
    along_u, along_v = (torch.stack([share[k] for share in shares]) for k in (3, 4))  # (reads, n)
    dv.addmm_(along_u.t(), torch.stack([share[5] for share in shares]))
    return dv.addcmul_(along_v.sum(0).unsqueeze(-1), v, value=-1)


class _Remember(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.shares, ctx.inverse_rms, ctx.shape = [], {}, y.shape
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> Tensor | None:
        # A pass that asked for other gradients may have left shares that it never came to collect.
        this_pass = torch._C._current_graph_task_id()
        shares = [share for of_pass, share in ctx.shares if of_pass == this_pass]
        ctx.shares = []
        if not shares:
            return grad
        source = shares[0][1]
        with no_autocast(source):
            dv = collect(shares).to(source.dtype).view(ctx.shape)
        return dv if grad is None else dv.add_(grad)


_NODE: Any = _Remember._backward_cls  # type: ignore[attr-defined]


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, eps: float, nodes: tuple[Any, ...], *sources: Tensor) -> Tensor:
        rows = [source.reshape(-1, source.shape[-1]) for source in sources]  # (n, D) each
        with no_autocast(u):
            inverse = [r_of(v.to(u.dtype), eps, node) for v, node in zip(rows, nodes, strict=True)]
            logits = u.new_empty(len(rows), rows[0].shape[0])
            for s, v, r in zip(logits, rows, inverse, strict=True):
                torch.mv(v.to(u.dtype), u, out=s)
                s.mul_(r)
            log_sum = logits.logsumexp(0)
            p = (logits - log_sum).exp_().unsqueeze(-1)  # (S, n, 1)
            h = p[0] * rows[0].to(u.dtype)
            for weight, v in zip(p[1:], rows[1:], strict=True):
                h.addcmul_(weight, v.to(u.dtype))
        h = h.to(sources[-1].dtype).view(sources[0].shape)
        ctx.save_for_backward(u, logits, log_sum, h, *inverse, *sources)
        ctx.nodes = nodes
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, logits, log_sum, h, *rest = ctx.saved_tensors
        inverse, sources = rest[: len(ctx.nodes)], rest[len(ctx.nodes) :]
        width = u.shape[0]
        rows = [source.reshape(-1, width) for source in sources]
        this_pass = torch._C._current_graph_task_id()
        with no_autocast(u):
            g = grad.reshape(-1, width).to(u.dtype)
            p = (logits - log_sum).exp_()  # (S, n)
            ds, product, ones = torch.empty_like(p), torch.empty_like(g), torch.ones_like(u)
            for d, v in zip(ds, rows, strict=True):
                torch.mv(torch.mul(g, v, out=product), ones, out=d)  # g . v_i
            torch.mul(g, h.reshape(-1, width), out=product)
            ds.sub_(torch.mv(product, ones)).mul_(p)
            along_u = ds.mul_(torch.stack(inverse))
            along_v = torch.stack(inverse).mul_(along_u).mul_(logits).div_(width)
            du = torch.zeros_like(u)
            for a, v in zip(along_u, rows, strict=True):
                du.addmv_(v.to(u.dtype).t(), a)
            grads: list[Tensor | None] = [None] * len(rows)
            for i, node in enumerate(ctx.nodes):
                if not ctx.needs_input_grad[3 + i]:
                    continue
                share = (g, rows[i], p[i], along_u[i], along_v[i], u)
                if node is None:
                    grads[i] = collect([share]).to(rows[i].dtype).view(sources[i].shape)
                else:
                    node.shares.append((this_pass, share))
        return (du, None, None, *grads)


def r_of(v: Tensor, eps: float, node: Any) -> Tensor:
    """r (n) of a source, which a remembered one computes once."""
    if node is None:
        return inverse_rms(v, eps)
    if eps not in node.inverse_rms:
        node.inverse_rms[eps] = inverse_rms(v, eps)
    return node.inverse_rms[eps]
