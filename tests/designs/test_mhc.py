"""mHC: Sinkhorn's maps against exact arithmetic, and what doubly stochastic maps imply."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor, nn

import depthbench as db
from depthbench.designs.mhc import reference_sinkhorn, sinkhorn

from .cases import SHAPE, connections, random_model, tokens
from .oracles_streams import sinkhorn_matrix


def random_logits(std: float, n_streams: int = 4, count: int = 50) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return std * torch.randn(count, n_streams, n_streams, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n_streams", [1, 2, 4])
def test_sinkhorn_makes_doubly_stochastic_maps(n_streams: int) -> None:
    logits = random_logits(1.0, n_streams)
    maps = sinkhorn(logits)
    torch.testing.assert_close(maps, sinkhorn_matrix(logits, "paper"), rtol=1e-12, atol=1e-14)
    assert (maps >= 0).all()
    assert (maps.sum(-1) - 1).abs().max() < 1e-14, "rows come last"
    assert (maps.sum(-2) - 1).abs().max() < 5e-3
    assert (maps.sum(-2) - 1).abs().median() < 1e-8
    reference = reference_sinkhorn(logits)
    torch.testing.assert_close(reference, sinkhorn_matrix(logits, "reference"), rtol=1e-12, atol=1e-14)
    assert (reference.sum(-2) - 1).abs().max() < 1e-5, "columns come last"


@pytest.mark.parametrize(
    ("diagonal", "off", "kept"), [(3.0, -3.0, 0.992619), (0.0, -8.0, 0.998995), (1.0, 0.0, 0.475367)]
)
def test_sinkhorn_of_equal_gaps_in_closed_form(diagonal: float, off: float, kept: float) -> None:
    maps = sinkhorn(torch.full((4, 4), off).fill_diagonal_(diagonal))
    assert maps.diagonal().tolist() == pytest.approx([kept] * 4, abs=1e-6)


def exact_sinkhorn(logits: Tensor) -> Tensor:
    """Exponentials of any size, in decimal arithmetic."""
    with localcontext() as context:
        context.prec = 40
        m = [[Decimal(z).exp() for z in row] for row in logits.tolist()]
        n = len(m)
        for _ in range(20):
            columns = [sum(m[o][i] for o in range(n)) for i in range(n)]
            m = [[m[o][i] / columns[i] for i in range(n)] for o in range(n)]
            m = [[x / sum(row) for x in row] for row in m]
        return torch.tensor([[float(x) for x in row] for row in m], dtype=torch.float64)


@pytest.mark.parametrize("scale", [3.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sinkhorn_under_extreme_logits(scale: float, dtype: torch.dtype) -> None:
    signs = torch.randint(-1, 2, (30, 4, 4), generator=torch.Generator().manual_seed(1)).double()
    cases = torch.cat([scale * signs, random_logits(scale / 3, count=30)]).to(dtype)
    logits = cases.clone().requires_grad_()
    maps = sinkhorn(logits)
    expected = torch.stack([exact_sinkhorn(case) for case in cases.double()])
    # A logit of 1e4 in float32 is itself known to 1e-3 only.
    tolerance = scale * torch.finfo(dtype).eps * 50
    torch.testing.assert_close(maps.detach().double(), expected, rtol=tolerance, atol=tolerance)
    (maps * random_logits(1.0, count=60).to(dtype)).sum().backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
    assert torch.isfinite(reference_sinkhorn(cases)).all()


def test_sinkhorn_is_at_least_float32() -> None:
    connection = db.build_model("mhc", SHAPE, dtype=torch.bfloat16).blocks["1"].attention_residual
    streams = torch.randn(2, 5, 4, 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    read, post, carry = connection.coefficients(streams)
    assert {read.dtype, post.dtype, carry.dtype} == {torch.float32}
    assert (carry.sum(-1) - 1).abs().max() < 1e-6


def test_mhc_moves_the_mean_stream_by_its_writes_alone() -> None:
    connection = random_model("mhc").blocks["1"].attention_residual
    generator = torch.Generator().manual_seed(2)
    streams = torch.randn(3, 6, 4, 24, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 6, 24, generator=generator, dtype=torch.float64)
    _, carry = connection.read(streams, norm=nn.Identity())
    moved = connection.write(carry, y, norm=nn.Identity()).mean(-2) - streams.mean(-2)
    _, post, maps = connection.coefficients(streams)
    column_error = maps.sum(-2) - 1  # of twenty rounds; zero where they have converged
    law = post.mean(-1, keepdim=True) * y
    torch.testing.assert_close(moved, law + (column_error.unsqueeze(-1) * streams).mean(-2), rtol=1e-12, atol=1e-12)
    assert (moved - law).abs().max() < 1e-2 and (moved - law).abs().median() < 1e-6
    assert not torch.allclose(maps, maps.transpose(-1, -2), atol=0.1), "a symmetric map would hide a transposition"


@pytest.mark.parametrize("n_streams", [1, 3, 4])
def test_mhc_with_equal_streams_is_pre_ln_whatever_it_reads_and_mixes(
    n_streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """phi = 0 and write weight one keep all streams equal, so that this cannot see a wrong or transposed map."""
    monkeypatch.setattr("depthbench.model.NORM_EPS", 1e-20)
    plain = random_model("pre_ln")(tokens())
    model = random_model("mhc", n_streams=n_streams)
    with torch.no_grad():
        for connection in connections(model):
            connection.phi.zero_()
            connection.bias[n_streams : 2 * n_streams] = 0
    torch.testing.assert_close(model(tokens()), plain, rtol=1e-8, atol=1e-9)
