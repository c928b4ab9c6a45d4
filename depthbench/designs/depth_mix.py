"""Softmax mixtures over many sources, in which no source is copied at a read and each gets its gradient once.

    s_i = r_i (v_i . u),   r_i = rsqrt(mean(v_i^2) + eps),   p = softmax_i(s),   h = sum_i p_i v_i

is the whole of a read. With g the gradient of h, backward has, per token,

    ds_i = p_i (g . v_i - g . h)        du = sum_{i, tokens} ds_i r_i v_i
    dv_i = sum over reads of  p_i g + ds_i r_i u - ds_i s_i r_i^2 / D v_i

Ordinary autograd would make one array a source and read, O(J^2) of them, to add them up. Here a read only leaves what
dv_i needs with the source (the node of `remember`), and when backward comes to the source all its reads have done so:
dv_i is formed at once. A read hands autograd no gradient for a remembered source, only the order; a source that is not
one gets its gradient as usual. So a source may be used in any other way as well, and the tuple of sources is plain.

Kept for backward: the sources, which are alive anyway, and per read s (S, n), its log-sum and h. Neighbours in memory
(`depth_store.py`) are read as one array.

Legend: B batch, T position, n = B T tokens, D d_model, S sources, J sublayers, k sources of a run of neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench.designs.base import no_autocast
from depthbench.designs.depth_store import Store, runs

Share = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # g (n, D), v (n, D), p, ds r, ds s r^2 / D (n), u (D)


def remember(y: Tensor, earlier: Sequence[Any] = (), capacity: int = 0) -> Tensor:
    """The tensor as a source: its values, with a place where reads leave their part of its gradient.

    With a capacity, wide sources after the first are stored as neighbours; `earlier` are the sources before this one.
    """
    if not (y.requires_grad and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return y
    return _Remember.apply(y, _row(y, earlier, capacity) if capacity and earlier else None)


def _row(y: Tensor, earlier: Sequence[Any], capacity: int) -> tuple[Store, int] | None:
    """Store y behind the last source, or, for the first to be stored, in a store of its own."""
    if y.dtype not in (torch.float32, torch.float64):
        return None
    last = earlier[-1].grad_fn if isinstance(earlier[-1], Tensor) else None
    if isinstance(last, _NODE) and last.row is not None:
        store, index = last.row
        return (store, index + 1) if store.put(index + 1, y) else None
    if len(earlier) > 1:
        return None
    store = Store(y, capacity)
    store.put(0, y)
    return store, 0


def mix(sources: Sequence[Tensor], u: Tensor, eps: float) -> Tensor:
    """h (B, T, D) of sources (B, T, D) each; u (D) in at least float32."""
    if torch.compiler.is_compiling():  # a compiler fuses the equation itself, and cannot see what reads leave
        terms = [p.unsqueeze(-1) * v for p, v in zip(weights(sources, u, eps), sources, strict=True)]
        return torch.stack(terms).sum(0).to(sources[-1].dtype)
    nodes = tuple(source.grad_fn if isinstance(source.grad_fn, _NODE) else None for source in sources)
    return _Mix.apply(u, eps, nodes, *sources)


def weights(sources: Sequence[Tensor], u: Tensor, eps: float) -> Tensor:
    """p (S, B, T) of the same mixture, in u's type."""
    with no_autocast(u):
        logits = [inverse_rms(source.to(u.dtype), eps) * (source.to(u.dtype) @ u) for source in sources]
        return torch.stack(logits).softmax(0)


def inverse_rms(v: Tensor, eps: float) -> Tensor:
    """r (...) of v (..., D)."""
    return torch.rsqrt(v.pow(2).mean(-1) + eps)


def collect(shares: list[Share]) -> Tensor:
    """dv (n, D), the sum of what reads left."""
    p = torch.stack([share[2] for share in shares])  # (reads, n)
    dv = combine(p, [share[0] for share in shares])
    along_u, along_v = (torch.stack([share[k] for share in shares]) for k in (3, 4))
    dv.addmm_(along_u.t(), torch.stack([share[5] for share in shares]))
    return dv.addcmul_(along_v.sum(0).unsqueeze(-1), shares[0][1].to(dv.dtype), value=-1)


def combine(p: Tensor, rows: list[Tensor]) -> Tensor:
    """sum_i p_i v_i (n, D), in p's type, of p (S, n) and rows v_i (n, D)."""
    total, start = None, 0
    for run in runs(rows, p.dtype):  # (k, n, D)
        k = len(run)
        if k > 1:
            weight = p[start : start + k].t().contiguous().unsqueeze(1)  # (n, 1, k)
            part = torch.bmm(weight, run.transpose(0, 1)).squeeze(1)
            total = part if total is None else total.add_(part)
        elif total is None:
            total = p[start].unsqueeze(-1) * run[0].to(p.dtype)
        else:
            total.addcmul_(p[start].unsqueeze(-1), run[0].to(p.dtype))
        start += k
    assert total is not None
    return total


class _Remember(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, row: tuple[Store, int] | None) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.shares, ctx.inverse_rms, ctx.shape, ctx.row = [], {}, y.shape, row
        return y.view_as(y) if row is None else row[0].get(row[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        # A pass that asked for other gradients may have left shares that it never came to collect.
        this_pass = torch._C._current_graph_task_id()
        shares = [share for of_pass, share in ctx.shares if of_pass == this_pass]
        ctx.shares = []
        if not shares:
            return grad, None
        source = shares[0][1]
        with no_autocast(source):
            dv = collect(shares).to(source.dtype).view(ctx.shape)
        return (dv if grad is None else dv.add_(grad)), None


_NODE: Any = _Remember._backward_cls


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, eps: float, nodes: tuple[Any, ...], *sources: Tensor) -> Tensor:
        rows = [source.reshape(-1, source.shape[-1]) for source in sources]  # (n, D) each
        with no_autocast(u):
            inverse = [_r_of(v.to(u.dtype), eps, node) for v, node in zip(rows, nodes, strict=True)]
            logits = torch.cat([run.to(u.dtype).flatten(0, 1) @ u for run in runs(rows, u.dtype)])
            logits = logits.view(len(rows), -1).mul_(torch.stack(inverse))
            log_sum = logits.logsumexp(0)
            h = combine((logits - log_sum).exp_(), rows).to(sources[-1].dtype).view(sources[0].shape)
        ctx.save_for_backward(u, logits, log_sum, h, *inverse, *sources)
        ctx.nodes = nodes
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, logits, log_sum, h, *rest = ctx.saved_tensors
        inverse, sources = torch.stack(rest[: len(ctx.nodes)]), rest[len(ctx.nodes) :]
        width = u.shape[0]
        rows = [source.reshape(-1, width) for source in sources]
        with no_autocast(u):
            g = grad.reshape(-1, width).to(u.dtype)
            p = (logits - log_sum).exp_()  # (S, n)
            delta = torch.mv(g * h.reshape(-1, width), torch.ones_like(u))
            ds = _dots(rows, g, u).sub_(delta).mul_(p)
            along_u = ds.mul_(inverse)
            along_v = inverse.mul_(along_u).mul_(logits).div_(width)
            du, start = torch.zeros_like(u), 0
            for run in runs(rows, u.dtype):
                du.addmv_(run.to(u.dtype).flatten(0, 1).t(), along_u[start : start + len(run)].flatten())
                start += len(run)
            this_pass = torch._C._current_graph_task_id()
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


def _dots(rows: list[Tensor], g: Tensor, u: Tensor) -> Tensor:
    """g . v_i (S, n)."""
    parts = []
    for run in runs(rows, u.dtype):
        if len(run) > 1:
            parts.append(torch.bmm(run.transpose(0, 1), g.unsqueeze(-1)).squeeze(-1).t())
        else:
            parts.append(torch.mv(g * run[0], torch.ones_like(u)).unsqueeze(0))
    return torch.cat(parts)


def _r_of(v: Tensor, eps: float, node: Any) -> Tensor:
    """r (n) of a source, which a remembered one computes once."""
    if node is None:
        return inverse_rms(v, eps)
    if eps not in node.inverse_rms:
        node.inverse_rms[eps] = inverse_rms(v, eps)
    return node.inverse_rms[eps]
