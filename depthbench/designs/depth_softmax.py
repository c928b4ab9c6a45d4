"""One softmax over the causal keys and over depth slots, without a score matrix: two parts joined by their log-sums.

    o = e^{l1 - l} o1 + sum_i e^{s_i - l} v_i,    s_i = q' . k_i / sqrt(E),    l = log(e^{l1} + sum_i e^{s_i})

o1 and l1 are attention over the sequence alone (`causal_softmax.py`), whose backward pass takes the joint o and l. With
do the gradient of o, and p_i = e^{s_i - l}, a slot's gradients are sums over the reads of it,

    dv_i = sum p_i do       dk_i = sum ds_i q',   ds_i = p_i (do . v_i - do . o) / sqrt(E)

A read leaves p, ds, do and q' with the slots, which collect them as sources do (`depth_shares.py`).

Kept for backward: queries, keys, values, slots (alive anyway), o, l, p (1 / E of the slots). Nothing of size T x T.

Legend: B batch, T position, n = B T, H heads, K key-value heads, G query heads of each, E head_dim, S slots, R reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from depthbench.designs import causal_softmax, depth_shares
from depthbench.designs.base import no_autocast
from depthbench.designs.depth_shares import Read, in_runs
from depthbench.designs.depth_store import Store

Slot = tuple[Tensor, Tensor]  # keys without rotation, and values, of one earlier sublayer: (B, T, K * E) each
Place = tuple[Store, Store, int]  # rows of keys, rows of values, and which


def remember(slot: Slot, earlier: Sequence[Slot], capacity: int) -> Slot:
    """The slot with a place where reads leave their part of its gradient, stored behind the slots before it."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not all(x.requires_grad for x in slot):
        return slot
    place = None
    if not earlier:
        place = Store(slot[0], capacity), Store(slot[1], capacity), 0
    elif isinstance(last := earlier[-1][0].grad_fn, _NODE) and last.place is not None:
        place = (*last.place[:2], last.index + 1)
    if place is not None and not all(store.put(place[2], x) for store, x in zip(place[:2], slot, strict=True)):
        place = None
    return slot if place is None else _Remember.apply(*slot, place)


@torch.compiler.disable  # a compiler cannot see what reads leave
def attend(q: Tensor, k: Tensor, v: Tensor, depth_q: Tensor, slots: Sequence[Slot]) -> Tensor:
    """o (B, T, H, E) from q, k, v and depth_q like it, and the slots, of K heads."""
    nodes = tuple(key.grad_fn if isinstance(key.grad_fn, _NODE) else None for key, _ in slots)
    place = None if nodes[0] is None else nodes[0].place
    together = place is not None and all(
        node is not None and node.place[0] is place[0] and node.index == i for i, node in enumerate(nodes)
    )
    if place is not None and together and torch.is_grad_enabled():
        store = place[:2]
        stacks = tuple(rows.values(0, len(slots)) for rows in store)
    else:
        store, stacks = None, tuple(torch.stack([x.flatten(0, 1) for x in part]) for part in zip(*slots, strict=True))
    return _Attend.apply(
        q, k, v, depth_q, store, nodes, stacks, *(x for part in zip(*slots, strict=True) for x in part)
    )


class _Remember(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.place, ctx.index, ctx.reads, ctx.parts = place, place[2], [], {}
        slot = place[0].get(place[2]), place[1].get(place[2])
        ctx.save_for_backward(*slot)  # so that whoever counts what is kept sees them
        return slot

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dkey: Tensor | None, dvalue: Tensor | None) -> tuple[Tensor | None, ...]:
        grads = [dkey, dvalue]
        if ctx.reads or ctx.parts:
            shape, this_pass = ctx.saved_tensors[0].shape, torch._C._current_graph_task_id()
            parts = depth_shares.collect(ctx, this_pass, _together)
            for k, part in enumerate(parts or ()):
                own = part.reshape(shape)
                before = grads[k]
                grads[k] = own if before is None else own.add_(before)
        return (*grads, None)


_NODE: Any = _Remember._backward_cls


class _Reads:
    """What the reads of one backward pass leave: do and q' by key-value head, p and ds a list."""

    def __init__(self, like: Tensor, capacity: int, group: int):
        n, heads, width = like.shape  # (n, K * G, E)
        self.do, self.q = (like.new_empty(capacity, group, n, heads // group, width) for _ in range(2))
        self.p: dict[int, Tensor] = {}  # row -> (n * K, G, S)
        self.ds: dict[int, Tensor] = {}
        self.free = capacity


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        depth_q: Tensor,
        store: tuple[Store, Store] | None,
        nodes: tuple[Any, ...],
        stacks: tuple[Tensor, ...],
        *slots: Tensor,
    ) -> Tensor:
        width = q.shape[-1]
        scale = width**-0.5
        with no_autocast(q):
            over_time, log_sum, ctx.rest = causal_softmax.forward(_heads_first(q, k, v), scale)
            keys, values = (_by_head(x.to(q.dtype), width) for x in stacks)  # (n K, S, E)
            log_sum = _grouped(log_sum.transpose(1, 2), keys)  # (n K, G)
            scores = _scores(depth_q, keys, scale, log_sum.dtype)  # (n K, G, S)
            joint = torch.logaddexp(log_sum, scores.logsumexp(-1))
            o = over_time.transpose(1, 2) * _ungrouped((log_sum - joint).exp_(), q).unsqueeze(-1).to(q.dtype)
            p = scores.sub_(joint.unsqueeze(-1)).exp_()
            grouped = o.view(len(keys), -1, width)  # (n K, G, E)
            grouped.baddbmm_(p.to(q.dtype), values)
        ctx.save_for_backward(q, k, v, depth_q, o, joint, p, *slots)
        ctx.store, ctx.nodes = store, nodes
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do: Tensor) -> tuple[Any, ...]:
        q, k, v, depth_q, o, joint, p, *slots = ctx.saved_tensors
        width, n_slots = q.shape[-1], len(slots) // 2
        scale = width**-0.5
        with no_autocast(q):
            do = do.contiguous()
            log_sum = _ungrouped(joint, q).transpose(1, 2)  # (B, H, T)
            over_time = causal_softmax.backward(_heads_first(do, q, k, v, o), log_sum, scale, ctx.rest)
            dq, dk, dv = _heads_first(*over_time)
            if ctx.store is None:
                stacks = tuple(
                    torch.stack([x.flatten(0, 1) for x in part]) for part in (slots[:n_slots], slots[n_slots:])
                )
            else:
                stacks = tuple(rows.values(0, n_slots) for rows in ctx.store)
            keys, values = (_by_head(x.to(q.dtype), width) for x in stacks)
            delta = _grouped(torch.linalg.vecdot(do, o), keys)  # (n K, G)
            ds = _scores(do, values, 1.0, p.dtype).sub_(delta.unsqueeze(-1)).mul_(p).mul_(scale).to(q.dtype)
            p = p.to(q.dtype)
            ddepth_q = torch.bmm(ds, keys).view(q.shape)
            dslots: list[Tensor | None] = [None] * len(slots)
            if ctx.store is None:
                grouped = (x.reshape(len(keys), -1, width) for x in (depth_q, do))  # (n K, G, E)
                both = [
                    torch.bmm(weights.transpose(1, 2), x) for weights, x in zip((ds, p), grouped, strict=True)
                ]  # (n K, S, E)
                dslots = [
                    part.reshape(slots[0].shape).to(slots[0].dtype)
                    for x in both
                    for part in x.transpose(0, 1).unbind(0)
                ]
            else:
                _leave(ctx, do, depth_q, p, ds)
        return (dq, dk, dv, ddepth_q, None, None, None, *dslots)


def _leave(ctx: Any, do: Tensor, q: Tensor, p: Tensor, ds: Tensor) -> None:
    """Leave a read's part of the gradients with its slots."""
    of_pass, keys = torch._C._current_graph_task_id(), ctx.store[0]
    kept = keys.reads.get(of_pass)
    do, q = (x.flatten(0, 1) for x in (do, q))  # (n, H, E)
    group = p.shape[1]
    if kept is None or kept.free == 0:
        kept = _Reads(q, keys.capacity // 2 + 1, group)
        keys.reads = {of_pass: kept}  # a pass that was given up left its own
    kept.free -= 1
    for rows, x in ((kept.do, do), (kept.q, q)):
        rows[kept.free].copy_(x.unflatten(1, (-1, group)).permute(2, 0, 1, 3))
    kept.p[kept.free], kept.ds[kept.free] = p, ds
    read = Read(of_pass, kept, kept.free, kept.free, ctx.nodes)
    for node in ctx.nodes:
        node.reads.append(read)


def _together(start: int, stop: int, reads: list[Read]) -> tuple[Tensor, Tensor]:
    """dk and dv (n, k, K * E) of slots start .. stop - 1 from reads that all of them are in."""
    totals: list[Tensor] = []
    for run in in_runs(reads):
        kept, rows = run[0].kept, range(run[0].row, run[-1].row + 1)
        n = kept.q.shape[2]
        parts = []
        for weights, others in ((kept.ds, kept.q), (kept.p, kept.do)):
            weight = torch.cat([weights[row][..., start:stop] for row in rows], 1)  # (n K, R * G, k)
            other = others[rows.start : rows.stop].flatten(0, 1)  # (R * G, n, K, E)
            part = torch.bmm(weight.transpose(1, 2), other.flatten(1, 2).transpose(0, 1))  # (n K, k, E)
            parts.append(part.unflatten(0, (n, -1)).transpose(1, 2))  # (n, k, K, E)
        totals = parts if not totals else [a.add_(b) for a, b in zip(totals, parts, strict=True)]
    dk, dv = totals
    return dk, dv


def _heads_first(*xs: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.transpose(1, 2) for x in xs)


def _by_head(stack: Tensor, width: int) -> Tensor:
    """(S, n, K * E) -> (n K, S, E), without a copy."""
    return stack.unflatten(-1, (-1, width)).flatten(1, 2).transpose(0, 1)


def _scores(x: Tensor, keys: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """x . k (n K, G, S) of x (B, T, H, E) and keys (n K, S, E)."""
    return torch.bmm(x.reshape(len(keys), -1, x.shape[-1]), keys.transpose(1, 2)).to(dtype).mul_(scale)


def _grouped(x: Tensor, keys: Tensor) -> Tensor:
    """(B, T, H) -> (n K, G)."""
    return x.reshape(len(keys), -1)


def _ungrouped(x: Tensor, q: Tensor) -> Tensor:
    """(n K, G) -> (B, T, H)."""
    return x.view(q.shape[:-1])
