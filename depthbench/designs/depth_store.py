"""Sources as neighbours in memory: written once each and never changed, so that many can be read as one array.

Legend: n tokens, D d_model, k sources of a run.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class Store:
    """Rows for tensors of one shape, filled in order."""

    def __init__(self, like: Tensor, capacity: int):
        self._rows = torch.empty(capacity, *like.shape, dtype=like.dtype, device=like.device)
        self._used = 0

    @torch.no_grad()
    def put(self, index: int, y: Tensor) -> bool:
        """Store y at an index; False if it does not fit, or if something else is there already.

        Recomputing a block stores the same again; leaving one out and going on from an old state would not.
        """
        if index >= len(self._rows) or y.shape != self._rows.shape[1:] or y.dtype != self._rows.dtype:
            return False
        if index < self._used:
            return torch.equal(self._rows[index], y)
        if index > self._used:
            return False
        self._rows[index].copy_(y)
        self._used += 1
        return True

    def get(self, index: int) -> Tensor:
        """The row as a tensor of its own: autograd counts writes to a tensor and its views, and later rows are none."""
        size = self._rows[0].numel()
        row = self._rows.new_empty(0)
        return row.set_(self._rows.untyped_storage(), index * size, self._rows.shape[1:], self._rows[0].stride())


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
