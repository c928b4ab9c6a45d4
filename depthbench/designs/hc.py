"""Hyper-Connections: N residual streams that every sublayer reads from, mixes and writes to.

    H in R^{N x D} per token, row = stream; Hn = RMS of each stream, without a gain
    A = A_static + s_a tanh(Hn W_a)   (N x (N+1): column 0 reads, columns 1..N mix)
    b = b_static + s_b tanh(Hn w_b)   (N: write weights)
    h0 = A[:, 0]^T H;   y = F(g * RMS(h0));   H <- A[:, 1:]^T H + b y^T

Open copies the embedding N times, close sums the streams. Start: A_static = [e_{j mod N} | I], b_static = 1, W = w = 0,
s = 0.01; the branches' output matrices (w_out, w2) / sqrt(N). The card's equation has streams as columns, this code has
them as rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

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
from depthbench.designs.streams import project, read, write


class HyperConnection(Connection):
    def __init__(self, site: Site, design: HyperConnections):
        super().__init__(site)
        n = self.n_streams = design.n_streams
        self.mix_streams, self.norm_eps = design.mix_streams, design.norm_eps
        self.static_alpha = site.parameter(n, n + 1)
        self.static_beta = site.parameter(n)
        # Scales are 1-element vectors, not scalars: FSDP2 refuses 0-dimensional parameters.
        self.dynamic_alpha_proj, self.dynamic_alpha_scale = site.parameter(site.d_model, n + 1), site.parameter(1)
        self.dynamic_beta_proj, self.dynamic_beta_scale = site.parameter(site.d_model), site.parameter(1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        n = self.n_streams
        home = torch.zeros(n, 1)
        home[self.sublayer % n] = 1.0
        fill(self.static_alpha, torch.cat([home, torch.eye(n)], dim=1))
        nn.init.ones_(self.static_beta)
        nn.init.zeros_(self.dynamic_alpha_proj)
        nn.init.zeros_(self.dynamic_beta_proj)
        nn.init.constant_(self.dynamic_alpha_scale, 0.01)
        nn.init.constant_(self.dynamic_beta_scale, 0.01)

    def coefficients(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """A (B, T, N, N+1) and b (B, T, N) of each token, in at least float32."""
        return self.coefficients_and_streams(streams)[:2]

    def coefficients_and_streams(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A and b, and the streams again (see `streams.py`)."""
        wide = at_least_fp32(streams).dtype
        w = torch.cat([self.dynamic_alpha_proj, self.dynamic_beta_proj.unsqueeze(-1)], -1).to(wide)  # (D, N+2)
        z, streams = project(streams, w, self.norm_eps)
        z_alpha, z_beta = torch.tanh(z).split([self.n_streams + 1, 1], -1)
        alpha = self.static_alpha.to(wide) + self.dynamic_alpha_scale.to(wide) * z_alpha
        beta = self.static_beta.to(wide) + self.dynamic_beta_scale.to(wide) * z_beta.squeeze(-1)
        return alpha, beta, streams

    def read(self, state: Tensor, norm: Norm) -> tuple[Tensor, tuple[Tensor, Tensor | None, Tensor]]:
        alpha, beta, streams = self.coefficients_and_streams(state)
        alpha = alpha.to(state.dtype).transpose(-1, -2)  # (B, T, N+1, N): row 0 reads, the rest mix
        h, streams = read(streams, alpha[..., 0, :])
        return norm(h), (streams, alpha[..., 1:, :] if self.mix_streams else None, beta.to(state.dtype))

    def write(self, carry: tuple[Tensor, Tensor | None, Tensor], y: Tensor, norm: Norm) -> Tensor:
        streams, maps, beta = carry
        return write(streams, maps, y.to(streams.dtype), beta)  # (B, T, N, D)


class StreamEnds(Ends):
    """N copies of the embedding; the sum of the streams, or their mean."""

    def __init__(self, n_streams: int, exit_reduce: Literal["sum", "mean"] = "sum"):
        super().__init__()
        self.n_streams, self.exit_reduce = n_streams, exit_reduce

    def open(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-2).expand(*x.shape[:-1], self.n_streams, x.shape[-1])  # (B, T, N, D)

    def close(self, state: Tensor) -> Tensor:
        return state.sum(-2) if self.exit_reduce == "sum" else state.mean(-2)


OutputScaling = Literal["divide", "multiply", "none"]


def check_streams(n_streams: int, output_scaling: str) -> None:
    """Raises ValueError for options that no design with streams has."""
    if n_streams < 1:
        raise ValueError(f"n_streams must be at least 1, got {n_streams}")
    if output_scaling not in get_args(OutputScaling):
        raise ValueError(f"output_scaling must be 'divide', 'multiply' or 'none', got {output_scaling!r}")


def scale_outputs(block: Any, n_streams: int, output_scaling: OutputScaling) -> None:
    """Rescale the fresh output matrices of a block's two branches by sqrt(N), up or down."""
    power = {"divide": -0.5, "multiply": 0.5, "none": 0.0}[output_scaling]
    for weight in (block.attention.w_out.weight, block.feed_forward.w2.weight):
        weight.mul_(n_streams**power)


@dataclass(frozen=True, kw_only=True)
class HyperConnections(Design):
    """Hyper-Connections, dynamic, one connection a sublayer."""

    n_streams: int = 4
    mix_streams: bool = True
    output_scaling: OutputScaling = "divide"
    norm_eps: float = 1e-8

    card: ClassVar[Card] = Card(
        name="hc",
        label="HC",
        family="multi-stream",
        equation=r"H_\ell = H_{\ell-1}A_\ell + F_\ell(\mathrm{LN}(H_{\ell-1}\alpha_\ell))\,\beta_\ell^\top",
        source="Zhu et al. 2024, equations 2-6",
        arxiv="2409.19606",
        weight="dynamic",
        published_lr=2e-3,
        notes=(
            "output_scaling: the source says to scale output matrices by sqrt(N) at the start, not in which direction; "
            "'divide' is what the reference code does, 'none' makes the model equal Pre-LN at the start.",
            "norm_eps: stands inside the root, beside the mean of squares; the value is the reference code's.",
            "mix_streams=False is the reference's early version, which computed A's stream part and dropped it.",
        ),
    )
    no_decay: ClassVar[tuple[str, ...]] = ("*.static_alpha", "*.static_beta")

    def __post_init__(self) -> None:
        check_streams(self.n_streams, self.output_scaling)

    def connection(self, site: Site) -> Connection:
        return HyperConnection(site, self)

    def ends(self, site: Site) -> Ends:
        return StreamEnds(self.n_streams)

    def extra_params(self, shape: ShapeLike) -> int:
        n = self.n_streams
        return 2 * shape.n_layers * (shape.d_model * (n + 2) + n * (n + 2) + 2)

    def finish_init(self, block: Any, *, std: float, generator: torch.Generator) -> None:
        scale_outputs(block, self.n_streams, self.output_scaling)
