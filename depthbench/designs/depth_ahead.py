"""Mixtures whose logits a store has made ahead of the read: the same gradients, in fewer passes over the sources.

With g the gradient of h, P the softmax, of one source i and all its reads m (see `depth_mix.py`),

    ds_mi = P_mi (g_m . v_i - g_m . h_m)
    dv_i  = sum_m P_mi g_m + r_i ds_mi u_m - ds_mi s_mi r_i^2 / D v_i          du_m = sum_{i, tokens} r_i ds_mi v_i

A read leaves g_m and <g_m, h_m> in one array and is done. When backward comes to a source, the reads that this source
shares with its neighbours are taken for all of them together: per token one product (sources x D) (D x reads) and one
(sources x reads) (reads x D), so that g is passed over twice for eight sources. The queries' gradient comes from there
too, which is why `remember` has them as an argument.

Legend: n tokens, D d_model, J mixtures, R reads, k sources of a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depthbench.designs import depth_shares
from depthbench.designs.depth_shares import Read, in_runs
from depthbench.designs.depth_store import GROUP, Store


class Reads:
    """The reads that one backward pass has come to, one row each, filled from the end."""

    def __init__(self, like: Tensor, capacity: int):
        self.g = like.new_empty(capacity, *like.shape)  # (J, n, D)
        self.delta, self.log_sum = (like.new_empty(capacity, like.shape[0]) for _ in range(2))  # (J, n)
        self.free = capacity


def forward(store: Store, m: int, n_sources: int) -> tuple[Tensor, Tensor]:
    """Mixture m over the first sources of the store: h (n, D) and the log-sum (n)."""
    logits = store.logits_of(slice(m, m + 1), 0, n_sources).squeeze(1)  # (S, n)
    log_sum = logits.logsumexp(0)
    begin = n_sources - n_sources % GROUP
    tail = (logits[begin:] - log_sum).exp_()  # the weights
    if begin:
        part, mixed = store.head(m, begin)
        h = mixed * (part - log_sum).exp_().unsqueeze(-1)
    else:
        h = torch.zeros_like(store.values(0, 1)[0])
    for weight, v in zip(tail, store.values(begin, n_sources), strict=True):
        h.addcmul_(weight.unsqueeze(-1), v)
    return h, log_sum


def leave(store: Store, m: int, nodes: tuple[Any, ...], g: Tensor, h: Tensor, log_sum: Tensor) -> None:
    """Leave a read's gradient g (n, D) with its sources."""
    of_pass = torch._C._current_graph_task_id()
    reads = store.reads.get(of_pass)
    if reads is None or reads.free == 0:
        assert store.queries is not None
        reads = Reads(g, len(store.queries))
        store.reads = {of_pass: reads}  # a pass that was given up left its own
    reads.free -= 1
    reads.g[reads.free].copy_(g)
    torch.linalg.vecdot(g, h, out=reads.delta[reads.free])
    reads.log_sum[reads.free].copy_(log_sum)
    read = Read(of_pass, reads, reads.free, m, nodes)
    for node in nodes:
        node.reads.append(read)


def collect(node: Any, of_pass: int, du: Tensor) -> Tensor | None:
    """dv (n, D) of a source, from the reads of this pass; adds to du (J, D), for its neighbours too."""
    store = node.row[0]

    def together(start: int, stop: int, reads: list[Read]) -> tuple[Tensor]:
        return (_together(store, start, stop, reads, du),)

    parts = depth_shares.collect(node, of_pass, together)
    return None if parts is None else parts[0]


def _together(store: Store, start: int, stop: int, reads: list[Read], du: Tensor) -> Tensor:
    """What `reads` add to dv (n, k, D) of sources start .. stop - 1, which all of them read; and to du (J, D)."""
    assert store.queries is not None
    dv = None
    values = store.values(start, stop)
    inverse = torch.stack(store.inverse_rms[start:stop], 1).unsqueeze(-1)  # (n, k, 1)
    for run in in_runs(reads):
        rows, mixtures = slice(run[0].row, run[-1].row + 1), slice(run[0].mixture, run[-1].mixture + 1)
        kept = run[0].kept
        g, queries = kept.g[rows], store.queries[mixtures]  # (R, n, D), (R, D)
        logits = store.logits_of(mixtures, start, stop)  # (k, R, n)
        p = (logits - kept.log_sum[rows]).exp_().permute(2, 0, 1).contiguous()  # (n, k, R)
        ds = torch.bmm(values.transpose(0, 1), g.permute(1, 2, 0))  # (n, k, R): g . v
        ds.sub_(kept.delta[rows].t().unsqueeze(1)).mul_(p)
        along_v = torch.einsum("nkr,krn->nk", ds, logits).mul_(inverse.squeeze(-1).square()).div_(-values.shape[-1])
        along_u = ds.mul_(inverse)
        part = torch.bmm(p, g.transpose(0, 1))  # (n, k, D)
        part.view(-1, part.shape[-1]).addmm_(along_u.flatten(0, 1), queries)
        part.addcmul_(along_v.unsqueeze(-1), values.transpose(0, 1))
        for weights, v in zip(along_u.unbind(1), values, strict=True):
            du[mixtures].addmm_(weights.t(), v)
        dv = part if dv is None else dv.add_(part)
    assert dv is not None
    return dv
