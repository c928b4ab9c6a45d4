"""Attention Residuals: every sublayer reads a softmax mixture over the outputs of all sublayers before it.

    v_0 = embedding, v_i = output of sublayer i
    h_j = sum_{i<j} p_ij v_i,   p_j = softmax_i( q_j . (g_j * RMS(v_i)) )     values un-normed, no 1/sqrt(D)
    y_j = F_j(norm_j(h_j));     one more mixture over all J+1 sources before the final norm

There is no residual sum. q starts at zero (uniform mixture), g at one. The first sublayer has one source, so it has no
query.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    compile_parts,
)
from depthbench.designs.depth_mix import Opening, remember

Sources = tuple[Any, ...]  # tensors (B, T, D), or None where nothing was written


class DepthMix(nn.Module):
    """Softmax mixture over sources, one learned query and key gain."""

    def __init__(self, site: Site, eps: float):
        super().__init__()
        self.eps = eps
        self.mixture: int | None = None  # which of the model's mixtures this is
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
        return depth_mix.mix(*self.arguments(sources), mixture=self.mixture)

    def arguments(self, sources: Sources) -> tuple[list[Tensor], Tensor, float]:
        """The sources there are, query times gain in at least float32, and eps."""
        present = [source for source in sources if source is not None]
        wide = torch.promote_types(at_least_fp32(present[0]).dtype, at_least_fp32(self.query).dtype)
        return present, (self.query * self.gain).to(wide), self.eps


class AttnResConnection(Connection):
    def __init__(self, site: Site, eps: float):
        super().__init__(site)
        self.mix = DepthMix(site, eps) if site.sublayer > 0 else None

    def read(self, state: Sources, norm: Norm) -> tuple[Tensor, Sources]:
        return norm(state[0] if self.mix is None else self.mix(state)), state

    def write(self, carry: Sources, y: Tensor, norm: Norm) -> Sources:
        return (*carry, remember(y, carry))


class AttnResEnds(Ends):
    """The embedding is the first source; the last mixture."""

    def __init__(self, site: Site, eps: float, *, keep_all: bool = True):
        super().__init__()
        self.mix = DepthMix(site, eps)
        self.keep_all = keep_all  # every output is a source, and stays one
        self._mixtures: list[DepthMix] = [self.mix]

    def join(self, connections: Sequence[Connection]) -> None:
        mixes = [connection.mix for connection in connections if isinstance(connection, AttnResConnection)]
        self._mixtures = [*(mix for mix in mixes if mix is not None), self.mix]
        for k, mix in enumerate(self._mixtures):
            mix.mixture = k

    def open(self, x: Tensor) -> Sources:
        if not self.keep_all:
            return (remember(x),)
        return (remember(x, opening=Opening(len(self._mixtures) + 1, self._queries(x), self.mix.eps)),)

    def _queries(self, x: Tensor) -> Tensor | None:
        """Query times gain of all mixtures (J, D), unless they are elsewhere (FSDP shards what has not been read)."""
        parameters = [parameter for mix in self._mixtures for parameter in (mix.query, mix.gain)]
        if any(type(parameter) is not nn.Parameter for parameter in parameters):
            return None
        queries, gains = (torch.stack(tuple(parameters[k::2])) for k in (0, 1))
        return (queries * gains).to(torch.promote_types(at_least_fp32(x).dtype, at_least_fp32(queries).dtype))

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
            "Under bf16 compute sources stay bf16, as branches wrote them; a mixture is float32, like Pre-LN's stream.",
        ),
    )

    def connection(self, site: Site) -> Connection:
        return AttnResConnection(site, site.eps if self.norm_eps is None else self.norm_eps)

    def ends(self, site: Site) -> Ends:
        return AttnResEnds(site, site.eps if self.norm_eps is None else self.norm_eps)

    def compile(self, block: Any) -> None:
        compile_parts(block.attention_norm, block.attention, block.feed_forward_norm, block.feed_forward)

    def extra_params(self, shape: ShapeLike) -> int:
        # J - 1 sublayers with a mixture and one before the head, each a query and a gain.
        return 4 * shape.n_layers * shape.d_model
