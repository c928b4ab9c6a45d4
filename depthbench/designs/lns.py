"""LayerNorm Scaling: Pre-LN whose normed branch inputs shrink with depth, so that the variance does not pile up.

    h_j = h_{j-1} + F_j(g_j * RMS(h_{j-1}) / sqrt(l)),   l = 1 .. L

l is the layer, the same for its attention and its feed-forward. The final norm is not scaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from depthbench.designs.base import Card, Connection, Design, Norm, Site


class LNSConnection(Connection):
    def __init__(self, site: Site, depth_scaled: bool):
        super().__init__(site)
        # A Python number: `init_weights` empties every buffer, and no cast or checkpoint touches it.
        self.factor = (site.n_sublayers // 2 if depth_scaled else site.layer + 1) ** -0.5

    def read(self, state: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        return norm(state) * self.factor, state

    def write(self, carry: Tensor, y: Tensor, norm: Norm) -> Tensor:
        return carry + y


@dataclass(frozen=True, kw_only=True)
class LayerNormScaling(Design):
    """LayerNorm Scaling: a fixed factor 1 / sqrt(l) on every normed branch input."""

    depth_scaled: bool = False

    card: ClassVar[Card] = Card(
        name="lns",
        label="LNS",
        family="norm",
        equation=r"h_\ell = h_{\ell-1} + F_\ell(\mathrm{LN}(h_{\ell-1}) / \sqrt{\ell})",
        source="Sun et al. 2025 (The Curse of Depth), equation of LayerNorm Scaling",
        arxiv="2502.05795",
        weight="fixed",
        published_lr=1e-2,
        notes=(
            "The factor counts layers from 1, not sublayers, and is not to be combined with a depth-scaled start.",
            "depth_scaled=True is the reference code's variant, 1 / sqrt(L) in every layer.",
            "Never OLMo-core's own block for it, 'default_scaled': in 3.0.0 its factor is a buffer that "
            "the initialisation leaves unfilled.",
            "The factor belongs to the place in the stack, not to the branch that may be moved there.",
        ),
    )

    def connection(self, site: Site) -> Connection:
        return LNSConnection(site, self.depth_scaled)
