"""What reads leave with a source for its gradient, collected when backward comes to the source, for neighbours at once.

A node (the autograd context of a remembered source) holds `index`, its place among its neighbours; `reads`, those that
have left something; and `parts`, what has already been worked out for it. Backward comes to the last of some neighbours
first, and by then every read from behind them has left its share with all of them: so it is worked out for a block of
8, then for those from within the block in blocks of 4, 2 and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthbench.designs.depth_store import GROUP

Parts = tuple[Tensor, ...]  # gradients, each (n, k, ...) of k neighbours


@dataclass(frozen=True, eq=False)
class Read:
    """One read as a backward pass has come to it: its row in what is kept of all of them, and its sources."""

    of_pass: int
    kept: Any
    row: int
    mixture: int
    nodes: tuple[Any, ...]


def collect(node: Any, of_pass: int, together: Callable[[int, int, list[Read]], Parts]) -> Parts | None:
    """The gradients of a source from the reads of this pass; `together` gives those of sources start .. stop - 1."""
    pending = [read for read in node.reads if read.of_pass == of_pass]
    node.reads = []
    node.parts = {key: part for key, part in node.parts.items() if key == of_pass}
    stop = node.index + 1
    start = stop - min(GROUP, stop & -stop)  # the block of a power of two that ends here
    while pending:
        peers = pending[0].nodes[start:stop]
        shared = [read for read in pending if read.nodes[start:stop] == peers]
        pending = without(pending, shared)
        parts = together(start, stop, shared)
        for k, peer in enumerate(peers):
            peer.reads = without(peer.reads, shared)
            own, earlier = tuple(part[:, k] for part in parts), peer.parts.get(of_pass)
            peer.parts[of_pass] = (
                own if earlier is None else tuple(a.add_(b) for a, b in zip(own, earlier, strict=True))
            )
    return node.parts.pop(of_pass, None)


def without(reads: list[Read], others: list[Read]) -> list[Read]:
    """Reads that are not among the others."""
    gone = set(map(id, others))
    return [read for read in reads if id(read) not in gone]


def in_runs(reads: list[Read]) -> list[list[Read]]:
    """Reads split where rows or mixtures are no neighbours, each run in ascending order."""
    runs: list[list[Read]] = []
    for read in sorted(reads, key=lambda read: (id(read.kept), read.row)):
        last = runs[-1][-1] if runs else None
        if last and last.kept is read.kept and (last.row + 1, last.mixture + 1) == (read.row, read.mixture):
            runs[-1].append(read)
        else:
            runs.append([read])
    return runs
