"""mHC: Hyper-Connections whose residual maps are doubly stochastic, so that mixing keeps the mean stream.

    x = the N streams of a token laid end to end;  u = RMS(x) phi   (columns [pre N | post N | res N * N])
    a = sigmoid(alpha_pre u_pre + bias_pre)               read:  h0 = a^T H;  y = F(g * RMS(h0))
    c = 2 sigmoid(alpha_post u_post + bias_post)          write
    R = Sinkhorn(alpha_res u_res + bias_res)              H <- R H + c y^T     (R: row = to, column = from)

Sinkhorn: exp, then 20 times columns and rows divided by their sums. Since 1^T R = 1^T, mean(H) only ever moves by
mean(c) y. Open copies the embedding N times, close sums the streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from depthbench.designs.base import (
    Card,
    Connection,
    Design,
    Ends,
    Norm,
    ShapeLike,
    Site,
    at_least_fp32,
    fill,
)
from depthbench.designs.hc import OutputScaling, StreamEnds, check_streams, scale_outputs
from depthbench.designs.streams import project, read, write

ROUNDS = 20
REFERENCE_EPS = 1e-6


def sinkhorn(logits: Tensor) -> Tensor:
    """Nearly doubly stochastic matrices from logits (..., N, N): 20 rounds of columns, then rows; rows are exact.

    In logarithms, so that no logit is too large, and with the matrices' axes first, where a CPU sums faster.
    """
    z = logits.movedim((-2, -1), (0, 1)).contiguous()
    for _ in range(ROUNDS):
        z = z.log_softmax(0).log_softmax(1)
    return z.exp().movedim((0, 1), (-2, -1))


def reference_sinkhorn(logits: Tensor) -> Tensor:
    """As the reference code has it: rows first, columns last, an eps in every division."""
    m = logits.softmax(-1) + REFERENCE_EPS
    m = m / (m.sum(-2, keepdim=True) + REFERENCE_EPS)
    for _ in range(ROUNDS - 1):
        m = m / (m.sum(-1, keepdim=True) + REFERENCE_EPS)
        m = m / (m.sum(-2, keepdim=True) + REFERENCE_EPS)
    return m


class ManifoldHyperConnection(Connection):
    def __init__(self, site: Site, design: ManifoldHyperConnections):
        super().__init__(site)
        self.n_streams, self.norm_eps, self.init = design.n_streams, design.norm_eps, design.init
        self.sinkhorn = sinkhorn if design.sinkhorn == "paper" else reference_sinkhorn
        n = self.n_streams
        self.phi = site.parameter(n * site.d_model, 2 * n + n * n)
        self.bias = site.parameter(2 * n + n * n)
        # 1-element vectors, not scalars: FSDP2 refuses 0-dimensional parameters.
        self.alpha_pre, self.alpha_post, self.alpha_res = (site.parameter(1) for _ in range(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        n = self.n_streams
        gap, kept = (8.0, 0.0) if self.init == "gap8" else (3.0, 3.0)
        pre = torch.full((n,), -gap)
        pre[self.sublayer % n] = gap
        res = torch.full((n, n), -gap).fill_diagonal_(kept)
        fill(self.bias, torch.cat([pre, torch.zeros(n), res.flatten()]))
        nn.init.zeros_(self.phi)
        for alpha in (self.alpha_pre, self.alpha_post, self.alpha_res):
            nn.init.constant_(alpha, 0.01)

    def coefficients(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a (B, T, N), c (B, T, N) and R (B, T, N, N) of each token, in at least float32."""
        return self.coefficients_and_streams(streams)[:3]

    def coefficients_and_streams(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a, c and R, and the streams again (see `streams.py`)."""
        n, wide = self.n_streams, at_least_fp32(streams).dtype
        u, laid_out = project(streams.flatten(-2), self.phi.to(wide), self.norm_eps)  # of (B, T, N * D)
        gains = torch.cat([self.alpha_pre.expand(n), self.alpha_post.expand(n), self.alpha_res.expand(n * n)])
        pre, post, res = (gains.to(wide) * u + self.bias.to(wide)).split([n, n, n * n], -1)
        maps = self.sinkhorn(res.unflatten(-1, (n, n))).contiguous()  # a batched product of strided maps is slow
        return torch.sigmoid(pre), 2 * torch.sigmoid(post), maps, laid_out.unflatten(-1, (n, -1))

    def read(self, state: Tensor, norm: Norm) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        pre, post, res, streams = self.coefficients_and_streams(state)
        h, streams = read(streams, pre.to(state.dtype))
        return norm(h), (streams, res.to(state.dtype), post.to(state.dtype))

    def write(self, carry: tuple[Tensor, Tensor, Tensor], y: Tensor, norm: Norm) -> Tensor:
        streams, maps, post = carry
        return write(streams, maps, y.to(streams.dtype), post)  # (B, T, N, D)


@dataclass(frozen=True, kw_only=True)
class ManifoldHyperConnections(Design):
    """Manifold-constrained Hyper-Connections, one connection a sublayer."""

    n_streams: int = 4
    sinkhorn: Literal["paper", "reference"] = "paper"
    exit_reduce: Literal["sum", "mean"] = "sum"
    init: Literal["gap8", "paper"] = "gap8"
    output_scaling: OutputScaling = "divide"
    norm_eps: float = 1e-6

    card: ClassVar[Card] = Card(
        name="mhc",
        label="mHC",
        family="multi-stream",
        equation=(
            r"H_\ell = R_\ell H_{\ell-1} + c_\ell\,F_\ell(\mathrm{LN}(a_\ell^\top H_{\ell-1}))^\top,"
            r"\quad R_\ell\mathbf{1} = R_\ell^\top\mathbf{1} = \mathbf{1}"
        ),
        source="mHC: Manifold-Constrained Hyper-Connections, 2025, equations of the mapping and of Sinkhorn-Knopp",
        arxiv="2512.24880",
        weight="dynamic",
        published_lr=2e-3,
        notes=(
            "init: 'gap8' is the reference code's start (read biases -8, +8 on the home stream; residual logits 0 on "
            "the diagonal, -8 off it); 'paper' the source's (-3 and +3; 3 and -3). phi = 0 in both: "
            "the source does not state it.",
            "sinkhorn: 'paper' ends with rows, which sum to one exactly; 'reference' is the code's order, with an eps, "
            "and ends with columns. Twenty rounds make the other sums one only for mild logits.",
            "exit_reduce: the final norm hides all but its eps of the choice; 'mean' is the reference code's.",
            "output_scaling: as in HC; the source has none.",
            "norm_eps: 1e-6 is the reference code's; the source has 1e-20.",
        ),
    )
    no_decay: ClassVar[tuple[str, ...]] = ("*_residual.bias", "*.alpha_pre", "*.alpha_post", "*.alpha_res")

    def __post_init__(self) -> None:
        check_streams(self.n_streams, self.output_scaling)
        for name, allowed in (
            ("sinkhorn", ("paper", "reference")),
            ("exit_reduce", ("sum", "mean")),
            ("init", ("gap8", "paper")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}, got {getattr(self, name)!r}")

    def connection(self, site: Site) -> Connection:
        return ManifoldHyperConnection(site, self)

    def ends(self, site: Site) -> Ends:
        return StreamEnds(self.n_streams, self.exit_reduce)

    def extra_params(self, shape: ShapeLike) -> int:
        n = self.n_streams
        return 2 * shape.n_layers * ((shape.d_model * n + 1) * (n * n + 2 * n) + 3)

    def finish_init(self, block: Any, *, std: float, generator: torch.Generator) -> None:
        scale_outputs(block, self.n_streams, self.output_scaling)
