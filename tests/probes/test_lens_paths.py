"""Lens, path weights, depth mixing, transport and norms against values made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import depthbench as db
from depthbench import probes
from depthbench.probes.mixing import dead_layers
from depthbench.probes.views import walk

from .common import CASES, DESIGNS, QUIET, SHAPE, connections, random_model, tokens

L, J = SHAPE.n_layers, 2 * SHAPE.n_layers
IDS = tokens(3, 7)


@pytest.mark.parametrize(("design", "options"), CASES)
@torch.no_grad()
def test_the_lens_at_the_last_layer_is_the_model(design: str, options: dict) -> None:  # type: ignore[type-arg]
    model = random_model(design, **options)
    result, path = probes.logit_lens(model, IDS, batch_size=2, **QUIET), walk(model)
    for h in path.lenses(L, path.run(path.open(IDS))).values():
        assert torch.equal(path.logits(h), model(IDS))
    loss = F.cross_entropy(model(IDS)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    assert result["loss"][:, -1] == pytest.approx(float(loss), rel=1e-9)
    assert result["kl_final_to_layer"][:, -1] == pytest.approx(0.0, abs=1e-12)
    assert (result["top1_agreement"][:, -1] == 1).all() and (result["top5_overlap"][:, -1] == 1).all()
    assert (result["kl_final_to_layer"][:, 0] > 1e-2).all()


@torch.no_grad()
def test_lens_by_hand_and_its_direction() -> None:
    model = random_model("hc")
    result, path = probes.logit_lens(model, IDS, **QUIET), walk(model)
    state = path.run(path.open(IDS), stop=1)
    a = connections(model)[2].coefficients(state)[0][..., 0]  # (B, T, N)
    final = model(IDS)[:, :-1].log_softmax(-1)
    for k, h in enumerate((state.sum(-2), (a.unsqueeze(-1) * state).sum(-2))):
        log_p = model.lm_head(h)[:, :-1].log_softmax(-1)
        forward = F.kl_div(log_p, final, reduction="none", log_target=True).sum(-1).mean()  # of p_final from p_l
        backward = F.kl_div(final, log_p, reduction="none", log_target=True).sum(-1).mean()
        assert result["kl_final_to_layer"][k, 1] == pytest.approx(float(forward), rel=1e-9)
        assert result["kl_layer_to_final"][k, 1] == pytest.approx(float(backward), rel=1e-9)
        assert forward != pytest.approx(float(backward), rel=1e-2)
        top = [set(map(int, x)) for p in (log_p, final) for x in p.topk(5).indices.flatten(0, 1)]
        n = len(top) // 2
        shared = np.mean([len(top[i] & top[n + i]) / 5 for i in range(n)])
        assert result["top5_overlap"][k, 1] == pytest.approx(shared)


@pytest.mark.parametrize("design", DESIGNS)
def test_where_the_two_lenses_differ(design: str) -> None:
    close, following = probes.logit_lens(random_model(design), IDS, **QUIET)["loss"]
    same = design not in ("hc", "mhc", "full_attnres", "block_attnres")
    assert (close[1:-1] == pytest.approx(following[1:-1], rel=1e-6)) == same


def test_path_weights_of_pre_ln_are_one() -> None:
    result = probes.path_weights(random_model("pre_ln"), IDS, **QUIET)
    lower = np.tril_indices(J + 1)
    assert (result["weight"][lower] == 1.0).all()
    assert np.isnan(result["weight"][np.triu_indices(J + 1, 1)]).all()
    assert result["unexplained"] == pytest.approx(0.0, abs=1e-12)


def test_path_weights_of_a_swap_are_exact() -> None:
    """Two streams that trade places at every sublayer; all read stream 0 and write to it."""
    model = random_model("hc", n_streams=2)
    with torch.no_grad():
        for connection in connections(model):
            connection.dynamic_alpha_scale.zero_()
            connection.dynamic_beta_scale.zero_()
            connection.static_alpha.copy_(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
            connection.static_beta.copy_(torch.tensor([1.0, 0.0]))
    weight = probes.path_weights(model, IDS, **QUIET)["weight"]
    for j in range(J):
        for i in range(j):  # written to stream 0, it comes back to stream 0 after an even number of swaps
            assert weight[j, 1 + i] == float((j - i - 1) % 2 == 0)
    assert (weight[J] == [2.0, *[1.0] * J]).all() and (weight[:J, 0] == 1.0).all()


@pytest.mark.parametrize("design", ["hc", "mhc"])
@torch.no_grad()
def test_path_weights_are_products_of_each_token_averaged_after(design: str) -> None:
    model = random_model(design)
    result, path = probes.path_weights(model, IDS, **QUIET), walk(model)
    found = []
    for moment in path.moments(path.open(IDS)):
        coefficients = connections(model)[moment.j].coefficients(moment.before)
        if design == "hc":
            alpha, b = coefficients
            found.append((alpha[..., 0], alpha[..., 1:].transpose(-1, -2), b))  # read, to x from, write
        else:
            a, b, maps = coefficients
            found.append((a, maps, b))
    i, j = 1, 4
    token = found[i][2].unsqueeze(-1)
    for k in range(i + 1, j):
        token = found[k][1] @ token
    w = (found[j][0].unsqueeze(-2) @ token).squeeze()
    assert result["weight"][j, 1 + i] == pytest.approx(float(w.mean()), rel=1e-9)
    mean = found[i][2].mean((0, 1)).unsqueeze(-1)
    for k in range(i + 1, j):
        mean = found[k][1].mean((0, 1)) @ mean
    assert float(found[j][0].mean((0, 1)) @ mean) != pytest.approx(float(w.mean()), rel=1e-4)


@pytest.mark.parametrize("design", DESIGNS)
def test_weights_explain_the_reads_of_all_but_post_norms(design: str) -> None:
    result = probes.path_weights(random_model(design), IDS, **QUIET)
    explained = result["unexplained"].max() < 1e-10
    assert explained == (design not in ("deepnorm", "keel"))


@torch.no_grad()
def test_an_untrained_mixture_is_uniform_and_nothing_is_dead() -> None:
    shape = db.Shape(n_layers=4, d_model=16, n_heads=2, d_ff=16, vocab_size=31)
    full = probes.depth_mixing(db.build_model("full_attnres", shape), IDS, **QUIET)
    for j in range(9):
        assert full["weight"][j, : max(1, j + 1)] == pytest.approx(1 / max(1, j + 1), rel=1e-5)
    assert np.isnan(full["running_sum"]).all() and probes.dead_segment(full) == 0
    weights = probes.path_weights(db.build_model("full_attnres", shape), IDS, **QUIET)["weight"]
    assert weights[5, :6] == pytest.approx(1 / 6, rel=1e-5)
    block = probes.depth_mixing(db.build_model("block_attnres", shape, block_size_sublayers=4), IDS, **QUIET)
    assert np.isnan(block["running_sum"][[0, 4]]).all()
    assert block["running_sum"][[1, 2, 3, 5, 6, 7]] == pytest.approx([1 / 2] * 3 + [1 / 3] * 3, rel=1e-5)
    assert block["embedding"] == pytest.approx([1, *[1 / 2] * 4, *[1 / 3] * 4], rel=1e-5)
    assert probes.dead_segment(block) == 0 and probes.dead_segment(block, threshold=0.51) == 4


def test_the_dead_segment_is_the_leading_run() -> None:
    nan = math.nan
    assert dead_layers(np.array([nan, 0.01, 0.02, 0.04, nan, 0.01, 0.2, 0.01]), 0.05) == 3
    assert dead_layers(np.array([nan, 0.01, 0.02, 0.04, nan, 0.01, 0.2, 0.01]), 0.01) == 0
    assert dead_layers(np.array([nan, 0.6, 0.01, 0.01]), 0.05) == 0
    assert dead_layers(np.array([nan, 0.01, 0.01, 0.01]), 0.05) == 2


def rank_of_contraction(e: float, k: int, n: int = 4) -> float:
    s = np.array([1.0, *[(1 - n * e) ** k] * (n - 1)])
    p = s / s.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def test_effective_rank_has_two_variants() -> None:
    values = torch.tensor([1, 0.27, 0.27, 0.27], dtype=torch.float64)
    assert float(probes.effective_rank(values)) == pytest.approx(3.25, abs=0.005)
    assert float(probes.effective_rank(values, energy=True)) == pytest.approx(1.95, abs=0.005)
    assert float(probes.effective_rank(torch.eye(4, dtype=torch.float64)[0])) == 1.0
    assert float(probes.effective_rank(torch.zeros(4, dtype=torch.float64))) == 0.0
    # the closed form at the paper's depths, from the notes on mHC
    assert [rank_of_contraction(0.01, k) for k in (32, 64, 140)] == pytest.approx([3.26, 1.95, 1.07], abs=0.005)


@torch.no_grad()
def test_a_toy_contraction_has_the_closed_form() -> None:
    """mHC with one symmetric map in all sublayers: doubly stochastic as it is, off-diagonals e."""
    shape = db.Shape(n_layers=8, d_model=16, n_heads=2, d_ff=16, vocab_size=31)
    model = db.build_model("mhc", shape, dtype=torch.float64)
    e = 0.02
    with torch.no_grad():
        for connection in connections(model):
            off = torch.full((4, 4), math.log(e), dtype=torch.float64)
            connection.bias[8:] = off.fill_diagonal_(math.log(1 - 3 * e)).flatten()
    result = probes.residual_transport(model, IDS, **QUIET)
    for k in range(17):
        assert result["effective_rank"][k] == pytest.approx(rank_of_contraction(e, k), rel=1e-9)
        assert result["spectrum"][k] == pytest.approx([1.0, *[(1 - 4 * e) ** k] * 3], rel=1e-9)
        assert result["gain"][k] == pytest.approx(1.0, rel=1e-9)


@torch.no_grad()
def test_composed_maps_and_overlap_by_hand() -> None:
    model = random_model("hc")
    result, path = probes.residual_transport(model, IDS, **QUIET), walk(model)
    state, product = path.open(IDS), torch.eye(4, dtype=torch.float64)
    assert result["stream_overlap"][0] == pytest.approx(1.0)  # four copies
    for k, moment in enumerate(path.moments(state), 1):
        product = connections(model)[moment.j].coefficients(moment.before)[0][..., 1:].transpose(-1, -2) @ product
        s = torch.linalg.svdvals(product)
        p = s.square() / s.square().sum(-1, keepdim=True)
        assert result["effective_rank_energy"][k] == pytest.approx(float((-(p * p.log()).sum(-1)).exp().mean()))
        unit = F.normalize(moment.after, dim=-1)
        pairs = [(unit[..., a, :] * unit[..., b, :]).sum(-1).abs() for a in range(4) for b in range(a)]
        assert result["stream_overlap"][k] == pytest.approx(float(torch.stack(pairs).mean()))


@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_branch_norms_and_shares(design: str) -> None:
    model = random_model(design)
    result = probes.branch_norms(model, IDS, batch_size=2, **QUIET)
    moment = list(walk(model).moments(walk(model).open(IDS)))[3]
    y, raw = moment.y, moment.raw
    assert result["output_rms"][3] == pytest.approx(float(y.pow(2).mean(-1).sqrt().mean()))
    assert result["relative_norm"][3] == pytest.approx(float((y.norm(dim=-1) / raw.norm(dim=-1)).mean()))
    assert result["cosine"][3] == pytest.approx(float(F.cosine_similarity(y, raw, dim=-1).mean()))
    assert result["end_share"].sum() == pytest.approx(1.0) and len(result["end_share"]) == J + 1
