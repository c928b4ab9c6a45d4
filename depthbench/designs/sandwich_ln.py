"""Sandwich-LN: Pre-LN with one more norm, on what each branch returns.

    h_j = h_{j-1} + g'_j * RMS(F_j(g_j * RMS(h_{j-1})))

Both gains start at one, so every branch starts by adding a vector of mean square one to an embedding of std 0.02.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from depthbench.designs.base import Card, Connection, Design, Ends, Norm, ShapeLike, Site


class SandwichLNConnection(Connection):
    def __init__(self, site: Site):
        super().__init__(site)
        self.post_norm = site.make_norm()

    def read(self, state: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        return norm(state), state

    def write(self, carry: Tensor, y: Tensor, norm: Norm) -> Tensor:
        return carry + self.post_norm(y)


class EmbeddingNormEnds(Ends):
    def __init__(self, site: Site):
        super().__init__()
        self.embedding_norm = site.make_norm()

    def open(self, x: Tensor) -> Tensor:
        return self.embedding_norm(x)


@dataclass(frozen=True, kw_only=True)
class SandwichLN(Design):
    """Sandwich-LN: a norm before and a norm after every branch, inside the residual."""

    embedding_norm: bool = False

    card: ClassVar[Card] = Card(
        name="sandwich_ln",
        label="Sandwich-LN",
        family="norm",
        equation=r"h_\ell = h_{\ell-1} + \mathrm{LN}(F_\ell(\mathrm{LN}(h_{\ell-1})))",
        source="Ding et al. 2021 (CogView), on stabilising training; Kim et al. 2025 (Peri-LN, arXiv 2502.02732)",
        arxiv="2105.13290",
        weight="fixed",
        published_lr=2e-3,
        notes=(
            "embedding_norm=True is Peri-LN, which also norms the embedding; "
            "the paper's code and Sandwich-LN as published do not.",
            "OLMo 2's reordered norm, h + LN(F(h)), has no norm before the branch and is another design.",
        ),
    )

    def connection(self, site: Site) -> Connection:
        return SandwichLNConnection(site)

    def ends(self, site: Site) -> Ends:
        return EmbeddingNormEnds(site) if self.embedding_norm else Ends()

    def extra_params(self, shape: ShapeLike) -> int:
        return (2 * shape.n_layers + self.embedding_norm) * shape.d_model
