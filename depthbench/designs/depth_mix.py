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
(`depth_store.py`) are read as one array; where the queries of later reads are known too, `depth_ahead.py` takes over.

Legend: B batch, T position, n = B T tokens, D d_model, S sources, J sublayers, k sources of a run of neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench.designs import depth_ahead
from depthbench.designs.base import no_autocast
from depthbench.designs.depth_store import Store, runs

Share = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # g (n, D), v (n, D), p, ds r, ds s r^2 / D (n), u (D)


class Opening(NamedTuple):
    """What the first source brings: room for all, and the queries u (J, D) of all mixtures where they are known."""

    capacity: int
    queries: Tensor | None
    eps: float


def remember(y: Tensor, earlier: Sequence[Any] = (), opening: Opening | None = None) -> Tensor:
    """The tensor as a source: its values, with a place where reads leave their part of its gradient.

    `earlier` are the sources before this one. A first source with an `opening` opens a store, in which wide ones that
    come after it are its neighbours.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return y
    store, index, queries = None, 0, None
    if opening is not None and y.dtype in (torch.float32, torch.float64):
        queries = opening.queries if opening.queries is not None and opening.queries.dtype == y.dtype else None
        store = Store(y, opening.capacity, queries, opening.eps)
    elif earlier and isinstance(earlier[-1], Tensor) and isinstance(earlier[-1].grad_fn, _NODE):
        last = earlier[-1].grad_fn
        if last.row is not None:
            store, index, queries = last.row[0], last.row[1] + 1, last.queries
    if store is not None and not store.put(index, y):
        store, queries = None, None
    if not y.requires_grad and (queries is None or not queries.requires_grad):
        return y
    return _Remember.apply(y, queries, None if store is None else (store, index))


def mix(sources: Sequence[Tensor], u: Tensor, eps: float, mixture: int | None = None) -> Tensor:
    """h (B, T, D) of sources (B, T, D) each; u (D) in at least float32; its row among the opening's queries, if any."""
    if torch.compiler.is_compiling():  # a compiler fuses the equation itself, and cannot see what reads leave
        return plain(sources, u, eps)
    nodes = tuple(source.grad_fn if isinstance(source.grad_fn, _NODE) else None for source in sources)
    if mixture is not None and (store := _store_ahead(nodes, mixture)) is not None:
        return _MixAhead.apply(store, mixture, nodes, *sources)
    return _Mix.apply(u, eps, nodes, *sources)


def _store_ahead(nodes: Sequence[Any], mixture: int) -> Store | None:
    """The store that has the logits of this mixture for exactly these sources."""
    if len(nodes) > mixture + 2 or any(node is None or node.row is None for node in nodes):
        return None
    store: Store = nodes[0].row[0]
    in_order = all(node.row[0] is store and node.row[1] == i for i, node in enumerate(nodes))
    return store if in_order and store.queries is not None else None


def plain(sources: Sequence[Tensor], u: Tensor, eps: float) -> Tensor:
    """h (B, T, D), the equation as it stands."""
    terms = [p.unsqueeze(-1) * v for p, v in zip(weights(sources, u, eps), sources, strict=True)]
    return torch.stack(terms).sum(0).to(widest(sources))


def weights(sources: Sequence[Tensor], u: Tensor, eps: float) -> Tensor:
    """p (S, B, T) of the same mixture, in u's type."""
    with no_autocast(u):
        logits = [inverse_rms(source.to(u.dtype), eps) * (source.to(u.dtype) @ u) for source in sources]
        return torch.stack(logits).softmax(0)


def widest(sources: Sequence[Tensor]) -> torch.dtype:
    """The type of a mixture: a branch's output stays as it came, which is exact; a sum is not rounded to it."""
    return reduce(torch.promote_types, (source.dtype for source in sources))


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
    def forward(ctx: Any, y: Tensor, queries: Tensor | None, row: tuple[Store, int] | None) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.shape, ctx.row, ctx.queries = y.shape, row, queries
        ctx.shares, ctx.inverse_rms = [], {}  # of reads by `_Mix`
        ctx.index, ctx.reads, ctx.parts = 0 if row is None else row[1], [], {}  # of reads by `_MixAhead`
        if row is None:
            return y.view_as(y)
        store, index = row
        source = store.get(index)
        if queries is not None:  # they live in the store; saved so that whoever counts what is kept sees them
            ctx.save_for_backward(source, store.logits[index])
        return source

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        # A pass that asked for other gradients may have left shares that it never came to collect.
        this_pass = torch._C._current_graph_task_id()
        shares = [share for of_pass, share in ctx.shares if of_pass == this_pass]
        ctx.shares = []
        dqueries = None
        if ctx.reads or ctx.parts:
            dqueries = torch.zeros_like(ctx.row[0].queries)
            dv = depth_ahead.collect(ctx, this_pass, dqueries)
            if dv is not None:
                grad = dv.view(ctx.shape) if grad is None else grad + dv.view(ctx.shape)
        if shares:
            source = shares[0][1]
            with no_autocast(source):
                dv = collect(shares).to(source.dtype).view(ctx.shape)
            grad = dv if grad is None else dv.add_(grad)
        return grad, dqueries, None


_NODE: Any = _Remember._backward_cls


class _MixAhead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, store: Store, mixture: int, nodes: tuple[Any, ...], *sources: Tensor) -> Tensor:
        with no_autocast(sources[0]):
            h, log_sum = depth_ahead.forward(store, mixture, len(sources))
        ctx.save_for_backward(h, log_sum)
        ctx.store, ctx.mixture, ctx.nodes = store, mixture, nodes
        return h.view(sources[0].shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        h, log_sum = ctx.saved_tensors
        depth_ahead.leave(ctx.store, ctx.mixture, ctx.nodes, grad.reshape(h.shape).to(h.dtype), h, log_sum)
        return (None,) * (3 + len(ctx.nodes))


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, eps: float, nodes: tuple[Any, ...], *sources: Tensor) -> Tensor:
        rows = [source.reshape(-1, source.shape[-1]) for source in sources]  # (n, D) each
        with no_autocast(u):
            inverse = [_r_of(v.to(u.dtype), eps, node) for v, node in zip(rows, nodes, strict=True)]
            logits = torch.cat([run.to(u.dtype).flatten(0, 1) @ u for run in runs(rows, u.dtype)])
            logits = logits.view(len(rows), -1).mul_(torch.stack(inverse))
            log_sum = logits.logsumexp(0)
            h = combine((logits - log_sum).exp_(), rows).to(widest(sources)).view(sources[0].shape)
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
