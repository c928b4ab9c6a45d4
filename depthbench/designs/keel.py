"""KEEL: Post-LN whose skip outweighs the branch by the number of sublayers, with a norm before the branch too.

    h_j = g'_j * RMS(alpha h_{j-1} + F_j(g_j * RMS(h_{j-1}))),   alpha = 2L

The first sublayer is plain Pre-LN; the second has alpha = 1 and keeps its post-norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from depthbench.designs.base import Card, Connection, Design, Norm, ShapeLike, Site


class KeelConnection(Connection):
    def __init__(self, site: Site, alpha: float):
        super().__init__(site)
        self.alpha = alpha if site.sublayer > 1 else 1.0
        self.post_norm: nn.Module | None = site.make_norm() if site.sublayer > 0 else None

    def read(self, state: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        return norm(state), state

    def write(self, carry: Tensor, y: Tensor, norm: Norm) -> Tensor:
        total = self.alpha * carry + y
        return total if self.post_norm is None else self.post_norm(total)


@dataclass(frozen=True, kw_only=True)
class Keel(Design):
    """KEEL: normalise the sum of a highway, scaled by 2L, and a Pre-LN branch."""

    alpha: float | None = None

    card: ClassVar[Card] = Card(
        name="keel",
        label="KEEL",
        family="norm",
        equation=r"h_\ell = \mathrm{LN}(\alpha h_{\ell-1} + F_\ell(\mathrm{LN}(h_{\ell-1}))),\quad \alpha = 2L",
        source="Post-LayerNorm is back, 2026, equation of KEEL and its exceptions for the first two sublayers",
        arxiv="2601.19895",
        weight="fixed",
        published_lr=2e-3,
        notes=(
            "alpha: None takes the number of sublayers, 2L; the source allows tuning it. "
            "A given one does not reach the first two sublayers.",
            "Secondary texts with gates or 1 / sqrt(L) describe something else.",
            "The source reports a worse loss early and a better one late, so short runs understate it.",
        ),
    )

    def __post_init__(self) -> None:
        if self.alpha is not None and not self.alpha > 0:
            raise ValueError(f"alpha must be positive, got {self.alpha}")

    def connection(self, site: Site) -> Connection:
        return KeelConnection(site, float(site.n_sublayers) if self.alpha is None else self.alpha)

    def extra_params(self, shape: ShapeLike) -> int:
        return (2 * shape.n_layers - 1) * shape.d_model
