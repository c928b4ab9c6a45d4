"""Attention Residuals: every sublayer reads a softmax mixture over the outputs of all sublayers before it.

    v_0 = embedding, v_i = output of sublayer i
    h_j = sum_{i<j} p_ij v_i,   p_j = softmax_i( q_j . (g_j * RMS(v_i)) )     values un-normed, no 1/sqrt(D)
    y_j = F_j(norm_j(h_j));     one more mixture over all J+1 sources before the final norm

There is no residual sum. q starts at zero (uniform mixture), g at one. The first sublayer has one source, so it has no
query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depthbench.designs import depth_mix
from depthbench.designs.base import (
    Card,
    Connection,
    Design,
    Ends,
    Norm,
    ShapeLike,
    Site,
    at_least_fp32,
)
from depthbench.designs.depth_mix import remember

Sources = tuple[Any, ...]  # tensors (B, T, D), or None where nothing was written


class DepthMix(nn.Module):
    """Softmax mixture over sources, one learned query and key gain."""

    def __init__(self, site: Site, eps: float):
        super().__init__()
        self.eps = eps
        self.query, self.gain = site.parameter(site.d_model), site.parameter(site.d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.query)
        nn.init.ones_(self.gain)

    def weights(self, sources: Sources) -> Tensor:
        """p (S, B, T) of each token, in at least float32."""
        return depth_mix.weights(*self.arguments(sources))

    def forward(self, sources: Sources) -> Tensor:
        """h (B, T, D)."""
        return depth_mix.mix(*self.arguments(sources))

    def arguments(self, sources: Sources) -> tuple[list[Tensor], Tensor, float]:
        """The sources there are, query times gain in at least float32, and eps."""
        present = [source for source in sources if source is not None]
        wide = torch.promote_types(at_least_fp32(present[0]).dtype, at_least_fp32(self.query).dtype)
        return present, (self.query * self.gain).to(wide), self.eps


class AttnResConnection(Connection):
    def __init__(self, site: Site, eps: float):
        super().__init__(site)
        self.mix = DepthMix(site, eps) if site.sublayer > 0 else None
        self.capacity = site.n_sublayers  # of the store of sublayer outputs

    def read(self, state: Sources, norm: Norm) -> tuple[Tensor, Sources]:
        return norm(state[0] if self.mix is None else self.mix(state)), state

    def write(self, carry: Sources, y: Tensor, norm: Norm) -> Sources:
        return (*carry, remember(y, carry, self.capacity))


class AttnResEnds(Ends):
    def __init__(self, site: Site, eps: float):
        super().__init__()
        self.mix = DepthMix(site, eps)

    def open(self, x: Tensor) -> Sources:
        return (remember(x),)

    def close(self, state: Sources) -> Tensor:
        return self.mix(state)


@dataclass(frozen=True, kw_only=True)
class FullAttnRes(Design):
    """Full Attention Residuals: the softmax runs over the embedding and every sublayer output so far."""

    norm_eps: float | None = None

    card: ClassVar[Card] = Card(
        name="full_attnres",
        label="Full AttnRes",
        family="cross-layer",
        equation=r"h_\ell \propto \sum_{i=0}^{\ell-1}\phi(w_\ell, v_i)\,v_i,\quad v_0 = h_1,\ v_{i\ge 1} = f_i(h_i)",
        source="Attention Residuals, 2026, equations of Full AttnRes",
        arxiv="2603.15031",
        weight="dynamic",
        published_lr=2e-3,
        notes=(
            "norm_eps: the source does not state the eps of the key norm; None takes the model's 1e-6. "
            "The reference code runs with 1e-5.",
            "Weight decay applies to query and gain, as in the reference code; "
            "decay on the query pulls to the uniform mixture.",
        ),
    )

    def connection(self, site: Site) -> Connection:
        return AttnResConnection(site, site.eps if self.norm_eps is None else self.norm_eps)

    def ends(self, site: Site) -> Ends:
        return AttnResEnds(site, site.eps if self.norm_eps is None else self.norm_eps)

    def extra_params(self, shape: ShapeLike) -> int:
        # J - 1 sublayers with a mixture and one before the head, each a query and a gain.
        return 4 * shape.n_layers * shape.d_model
