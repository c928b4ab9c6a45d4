"""Depth-muP and CompleteP: Pre-LN whose branches, rates and Adam eps are scaled with depth, so that one rate fits all.

    h_j = h_{j-1} + (L / L0)^-a F_j(g_j * RMS(h_{j-1}))         a = 1/2 Depth-muP, a = 1 CompleteP; L0 the base depth
    in the blocks: lr x (L / L0)^(a - 1), Adam eps x (L / L0)^-a

At L = L0 both are Pre-LN. They stand beside the paper's ten: the reference code has them as two extra rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from depthbench.designs.base import Card, Connection, Design, Norm, Site
from depthbench.designs.pre_ln import PreLNConnection


class ScaledConnection(PreLNConnection):
    def __init__(self, site: Site, factor: float):
        super().__init__(site)
        self.factor = factor

    def write(self, carry: Tensor, y: Tensor, norm: Norm) -> Tensor:
        return carry + self.factor * y


@dataclass(frozen=True, kw_only=True)
class DepthMuP(Design):
    """Pre-LN with branches scaled by (L / base_layers)^-1/2. No parameters of its own."""

    base_layers: int = 24

    exponent: ClassVar[float] = 0.5
    card: ClassVar[Card] = Card(
        name="depth_mup",
        label="Depth-muP",
        family="norm",
        equation=r"h_\ell = h_{\ell-1} + (L/L_0)^{-1/2}\,F_\ell(\mathrm{LN}(h_{\ell-1}))",
        source="Yang et al. 2023; the reference code's depth mode, without its width mode",
        arxiv="2310.02244",
        weight="fixed",
        published_lr=None,
        notes=("base_layers: 24, the base of the reference code; a learning rate is stated for that depth.",),
    )

    def __post_init__(self) -> None:
        if self.base_layers < 1:
            raise ValueError(f"base_layers must be at least 1, got {self.base_layers}")

    def connection(self, site: Site) -> Connection:
        return ScaledConnection(site, self._ratio(site.n_sublayers // 2) ** -self.exponent)

    def optimizer_scales(self, n_layers: int) -> dict[str, dict[str, float]]:
        ratio = self._ratio(n_layers)
        return {"blocks.*": {"lr": ratio ** (self.exponent - 1), "eps": ratio**-self.exponent}}

    def _ratio(self, n_layers: int) -> float:
        return n_layers / self.base_layers


@dataclass(frozen=True, kw_only=True)
class CompleteP(DepthMuP):
    """Pre-LN with branches scaled by base_layers / L. No parameters of its own."""

    exponent: ClassVar[float] = 1.0
    card: ClassVar[Card] = Card(
        name="complete_p",
        label="CompleteP",
        family="norm",
        equation=r"h_\ell = h_{\ell-1} + (L/L_0)^{-1}\,F_\ell(\mathrm{LN}(h_{\ell-1}))",
        source="Dey et al. 2025; the reference code's depth mode, without its width mode",
        arxiv="2505.01618",
        weight="fixed",
        published_lr=None,
        notes=DepthMuP.card.notes,
    )
