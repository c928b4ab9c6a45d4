"""Pre-LN: one residual stream to which every branch adds its output.

h_j = h_{j-1} + F_j(g_j * RMS(h_{j-1}))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from depthbench.designs.base import Card, Connection, Design, Norm, Site


class PreLNConnection(Connection):
    def read(self, state: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        return norm(state), state

    def write(self, carry: Tensor, y: Tensor, norm: Norm) -> Tensor:
        return carry + y


@dataclass(frozen=True, kw_only=True)
class PreLN(Design):
    """The baseline: normalise before the branch, add after it. No parameters of its own."""

    card: ClassVar[Card] = Card(
        name="pre_ln",
        label="Pre-LN",
        family="baseline",
        equation=r"h_\ell = h_{\ell-1} + F_\ell(\mathrm{LN}(h_{\ell-1}))",
        source="Xiong et al. 2020; the paper's table of residual updates",
        arxiv="2002.04745",
        weight="fixed",
        published_lr=2e-3,
        notes=("RMSNorm with a gain and no bias stands for LN, as in the paper's backbone.",),
    )

    def connection(self, site: Site) -> Connection:
        return PreLNConnection(site)
