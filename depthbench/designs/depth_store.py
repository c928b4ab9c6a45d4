"""Sources as neighbours in memory, and the logits of all later mixtures made as soon as a source is there.

    s_mi = r_i (v_i . u_m),   r_i = rsqrt(mean(v_i^2) + eps)    for every mixture m to come: one product a source

Rows are written once each and never changed, so many can be read as one array, and several mixtures can read them at
once. The queries of mixtures to come are known only where parameters are whole (not under FSDP); without them the store
is just rows.

Legend: n tokens, D d_model, J mixtures, k sources of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

GROUP = 8  # sources, and mixtures, that share one pass over the other


class Store:
    """Rows for tensors of one shape, filled in order; mixture m is made for the sources 0 .. m + 1."""

    def __init__(self, like: Tensor, capacity: int, queries: Tensor | None = None, eps: float = 0.0):
        self._rows = torch.empty(capacity, *like.shape, dtype=like.dtype, device=like.device)
        self._used, self.capacity = 0, capacity
        self.queries, self.eps = None if queries is None else queries.detach(), eps  # (J, D)
        self.logits: list[Tensor] = []  # of source i: (J - first(i), n)
        self.inverse_rms: list[Tensor] = []  # (n) each
        self._shared: _Head | None = None
        self.reads: dict[int, Any] = {}  # of a backward pass: what its reads left

    @torch.no_grad()
    def put(self, index: int, y: Tensor) -> bool:
        """Store y at an index; False if it does not fit, or if something else is there already.

        Going on again from an old state would store something else. Recomputing a block, which happens within a
        backward pass, stores the same again, if perhaps rounded otherwise: then what is there stays and is taken.
        """
        if index >= len(self._rows) or y.shape != self._rows.shape[1:] or y.dtype != self._rows.dtype:
            return False
        if index < self._used:
            return torch._C._current_graph_task_id() != -1 or torch.equal(self._rows[index], y)
        if index > self._used:
            return False
        self._rows[index].copy_(y)
        self._used += 1
        if self.queries is not None:
            v = self.values(index, index + 1)[0]
            self.inverse_rms.append(torch.rsqrt(torch.linalg.vector_norm(v, dim=-1).square_() / v.shape[-1] + self.eps))
            self.logits.append((self.queries[first_reader(index) :] @ v.t()).mul_(self.inverse_rms[-1]))
        return True

    def get(self, index: int) -> Tensor:
        """The row as a tensor of its own: autograd counts writes to a tensor and its views, and later rows are none."""
        size = self._rows[0].numel()
        row = self._rows.new_empty(0)
        return row.set_(self._rows.untyped_storage(), index * size, self._rows.shape[1:], self._rows[0].stride())

    def values(self, start: int, stop: int) -> Tensor:
        """Rows (k, n, D)."""
        return self._rows[start:stop].flatten(1, -2)

    def logits_of(self, mixtures: slice, start: int, stop: int) -> Tensor:
        """s (k, mixtures, n) of sources start .. stop - 1."""
        return torch.stack(
            [
                self.logits[i][mixtures.start - first_reader(i) : mixtures.stop - first_reader(i)]
                for i in range(start, stop)
            ]
        )

    def head(self, m: int, n_sources: int) -> tuple[Tensor, Tensor]:
        """Log-sum (n) and mixture (n, D) of mixture m over its first `n_sources` sources, a multiple of GROUP.

        Made in one pass for the mixtures that come next and have the same sources to begin with.
        """
        begin = n_sources - 2  # the first mixture that has them all
        alone = m not in range(begin, begin + GROUP)
        if alone or self._shared is None or self._shared.n_sources != n_sources:
            assert self.queries is not None
            mixtures = slice(m, m + 1) if alone else slice(begin, min(begin + GROUP, len(self.queries)))
            logits = self.logits_of(mixtures, 0, n_sources)  # (S, k, n)
            log_sum = logits.logsumexp(0)
            p = logits.sub_(log_sum).exp_().permute(2, 1, 0).contiguous()  # (n, k, S)
            mixed = torch.bmm(p, self.values(0, n_sources).transpose(0, 1))  # (n, k, D)
            if alone:
                return log_sum[0], mixed[:, 0]
            self._shared = _Head(n_sources, log_sum, mixed, set(range(begin, begin + len(log_sum))))
        head, k = self._shared, m - begin
        head.unread.discard(m)
        if not head.unread:
            self._shared = None
        return head.log_sum[k], head.mixed[:, k]


@dataclass
class _Head:
    """What a group of mixtures has of the sources that all of them read."""

    n_sources: int
    log_sum: Tensor  # (k, n)
    mixed: Tensor  # (n, k, D)
    unread: set[int]


def first_reader(source: int) -> int:
    """The first mixture that reads a source."""
    return max(0, source - 1)


def runs(rows: list[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
    """The rows (n, D) as arrays (k, n, D), neighbours together, in order; those of another dtype stay single."""
    start = 0
    for i in range(1, len(rows) + 1):
        if i < len(rows) and rows[i].dtype == dtype and _neighbours(rows[i - 1], rows[i]):
            continue
        first = rows[start]
        yield first.as_strided((i - start, *first.shape), (first.numel(), *first.stride()))
        start = i


def _neighbours(a: Tensor, b: Tensor) -> bool:
    return (
        a.is_contiguous()
        and b.is_contiguous()
        and a.dtype == b.dtype
        and a.shape == b.shape
        and b.data_ptr() == a.data_ptr() + a.nbytes
        and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    )
