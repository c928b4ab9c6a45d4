"""DeepNorm: Post-LN with a heavier skip and a smaller start, so that an update stays bounded at any depth.

    h_j = LN_j(alpha h_{j-1} + F_j(h_{j-1})),   alpha = (2L)^(1/4)

The block's own norm stands after the addition; the branch reads the state as it is. At the start the value, output and
feed-forward matrices are multiplied by beta = (8L)^(-1/4). alpha * beta = 4^(-1/4) at every depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from depthbench.designs.base import Card, Connection, Design, Norm, Site


def skip_factor(n_layers: int) -> float:
    """alpha = (2L)^(1/4), the value for a decoder without an encoder."""
    return (2 * n_layers) ** 0.25


def start_factor(n_layers: int) -> float:
    """beta = (8L)^(-1/4)."""
    return (8 * n_layers) ** -0.25


class DeepNormConnection(Connection):
    def __init__(self, site: Site):
        super().__init__(site)
        self.alpha = skip_factor(site.n_sublayers // 2)

    def read(self, state: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        return state, state

    def write(self, carry: Tensor, y: Tensor, norm: Norm) -> Tensor:
        return norm(self.alpha * carry + y)


@dataclass(frozen=True, kw_only=True)
class DeepNorm(Design):
    """DeepNorm: normalise the sum of a scaled skip and the branch. No parameters of its own."""

    norm: Literal["layer", "rms"] = "layer"

    card: ClassVar[Card] = Card(
        name="deepnorm",
        label="DeepNorm",
        family="norm",
        equation=r"h_\ell = \mathrm{LN}(\alpha h_{\ell-1} + F_\ell(h_{\ell-1})),\quad \alpha = (2L)^{1/4}",
        source="Wang et al. 2022 (DeepNet), equation of DeepNorm and its table of constants, decoder-only",
        arxiv="2203.00555",
        weight="fixed",
        published_lr=1e-3,
        notes=(
            "norm: 'layer' subtracts the mean, as the source and the reference code do (here without a bias); "
            "'rms' keeps the RMSNorm of the other designs. The final norm is RMSNorm in both.",
            "beta scales the value and output matrices and all three of the SwiGLU; the source has two there, "
            "so the feed-forward output starts smaller than it derives.",
        ),
    )

    def __post_init__(self) -> None:
        if self.norm not in ("layer", "rms"):
            raise ValueError(f"norm must be 'layer' or 'rms', got {self.norm!r}")

    @property
    def block_norm(self) -> Literal["rms", "layer"]:
        return self.norm

    def connection(self, site: Site) -> Connection:
        return DeepNormConnection(site)

    def finish_init(self, block: Any, *, std: float, generator: torch.Generator) -> None:
        attention, feed_forward = block.attention, block.feed_forward
        for linear in (attention.w_v, attention.w_out, feed_forward.w1, feed_forward.w2, feed_forward.w3):
            linear.weight.mul_(start_factor(block.n_layers))
