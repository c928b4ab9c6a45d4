"""Block Attention Residuals: as Full AttnRes, but outputs are summed within a block, and the blocks are the sources.

    v_0 = embedding, v_k = sum of the outputs of block k so far    (blocks of S sublayers, in order)
    h_j = sum_k p_jk v_k over the blocks that hold something,  p_j as in Full AttnRes;  y_j = F_j(norm_j(h_j))

S = 1 is Full AttnRes. An odd S puts block boundaries between attention and feed-forward; the last block may be short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from depthbench.designs.attn_res import AttnResConnection, AttnResEnds, Sources
from depthbench.designs.base import Card, Connection, Design, Ends, Norm, ShapeLike, Site, compile_parts
from depthbench.designs.depth_mix import remember

N_BLOCKS = 8  # of the source, unless a block size is given


def block_size(n_sublayers: int, given: int | None = None) -> int:
    """Sublayers of a block: as given, by default max(1, floor(J / 8))."""
    return given or max(1, n_sublayers // N_BLOCKS)


class BlockAttnResConnection(AttnResConnection):
    """Reads as in Full AttnRes; the last source may be a block still open."""

    def __init__(self, site: Site, eps: float, block_size_sublayers: int):
        super().__init__(site, eps)
        self.alone = block_size_sublayers == 1
        self.source = 1 + site.sublayer // block_size_sublayers

    def write(self, carry: Sources, y: Tensor, norm: Norm) -> Sources:
        # A source belongs to the block, not to the order of writes: with a whole block left out its place stays empty.
        sources = carry + (None,) * (self.source + 1 - len(carry))
        so_far = sources[self.source]
        if not self.alone:
            y = y.to(torch.promote_types(y.dtype, carry[0].dtype))  # a sum is kept like the stream of Pre-LN
        total = remember(y if so_far is None else so_far + y, carry if self.alone else ())
        return (*sources[: self.source], total, *sources[self.source + 1 :])


@dataclass(frozen=True, kw_only=True)
class BlockAttnRes(Design):
    """Block Attention Residuals: the softmax runs over the embedding and the sums of blocks of outputs."""

    block_size_sublayers: int | None = None
    norm_eps: float | None = None

    card: ClassVar[Card] = Card(
        name="block_attnres",
        label="Block AttnRes",
        family="cross-layer",
        equation=(
            r"h_\ell \propto \sum_{k}\phi(w_\ell, b_k)\,b_k,"
            r"\quad b_0 = h_1,\ b_k = \sum_{i\in B_k,\,i<\ell} f_i(h_i)"
        ),
        source="Attention Residuals, 2026, equations of Block AttnRes",
        arxiv="2603.15031",
        weight="dynamic",
        published_lr=2e-3,
        notes=(
            "Under bf16 compute the sums of a block and the mixtures are float32, like the stream of Pre-LN.",
            "block_size_sublayers: None takes max(1, floor(2L / 8)), which makes the paper's eight blocks where "
            "8 divides 2L, and otherwise more.",
            "The embedding is a source of its own and in no block; the source's pseudo-code would count it twice.",
            "norm_eps and weight decay: as in Full AttnRes.",
        ),
    )

    def __post_init__(self) -> None:
        if self.block_size_sublayers is not None and self.block_size_sublayers < 1:
            raise ValueError(f"block_size_sublayers must be at least 1, got {self.block_size_sublayers}")

    def connection(self, site: Site) -> Connection:
        return BlockAttnResConnection(site, site.eps if self.norm_eps is None else self.norm_eps, self._size(site))

    def ends(self, site: Site) -> Ends:
        eps = site.eps if self.norm_eps is None else self.norm_eps
        return AttnResEnds(site, eps, keep_all=self._size(site) == 1)

    def _size(self, site: Site) -> int:
        return block_size(site.n_sublayers, self.block_size_sublayers)

    def compile(self, block: Any) -> None:
        compile_parts(block.attention_norm, block.attention, block.feed_forward_norm, block.feed_forward)

    def extra_params(self, shape: ShapeLike) -> int:
        return 4 * shape.n_layers * shape.d_model  # as many as in Full AttnRes
