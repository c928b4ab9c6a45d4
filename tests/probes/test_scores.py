"""Causal and permutation scores and pruning equal the plain loop over whole passes; angles are exact."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from depthbench import probes
from depthbench.probes.tap import branch_outputs

from .common import DESIGNS, QUIET, SHAPE, exchanged, random_model, tokens, window_losses, zeroed

L = SHAPE.n_layers
IDS = tokens(3, 7)
BRANCHES = r"(attention|feed_forward|attention_norm|feed_forward_norm)\."


@torch.no_grad()
def layer_outputs(model: Any, missing: int | None = None, skip: Any = "silent") -> dict[int, torch.Tensor]:
    """Both branch outputs of each layer (B, T, 2 D), heard in the model's own forward pass."""
    with branch_outputs(model) as heard:
        if missing is None:
            model(IDS)
        else:
            with probes.skipped(model, missing, skip):
                model(IDS)
    layers = [l for l in range(L) if l != missing]
    return {l: torch.cat(heard[2 * i : 2 * i + 2], -1) for i, l in enumerate(layers)}


@pytest.mark.parametrize("skip", ["silent", "reference"])
@pytest.mark.parametrize("design", DESIGNS)
def test_branch_scores_are_those_of_whole_passes(design: str, skip: Any) -> None:
    model = random_model(design)
    whole = layer_outputs(model)
    score = probes.causal_scores(model, IDS, skip=skip, batch_size=2, **QUIET)["branch_score"]
    for s in range(L):
        pruned = layer_outputs(model, s, skip)
        assert np.isnan(score[s, : s + 1]).all()
        for l in range(s + 1, L):
            ratio = (pruned[l] - whole[l]).norm(dim=-1) / whole[l].norm(dim=-1)
            assert score[s, l] == pytest.approx(float(ratio.mean()), rel=1e-9)


def test_the_papers_score_is_the_change_of_the_update() -> None:
    """Pre-LN: z_{l+1} - z_l is the sum of the layer's outputs."""
    model = random_model("pre_ln")
    whole, d = layer_outputs(model), SHAPE.d_model
    result = probes.causal_scores(model, IDS, **QUIET)
    for s in range(L):
        pruned = layer_outputs(model, s)
        for l in range(s + 1, L):
            u, bar = (x[l][..., :d] + x[l][..., d:] for x in (whole, pruned))
            change, size = (bar - u).norm(dim=-1), u.norm(dim=-1)
            assert result["score"][s, l] == pytest.approx(float((change / size).mean()), rel=1e-9)
            assert result["change"][s, l] == pytest.approx(float(change.mean()), rel=1e-9)
            assert result["update"][l] == pytest.approx(float(size.mean()), rel=1e-9)


@pytest.mark.parametrize("design", DESIGNS)
def test_skipping_a_layer_that_writes_nothing_changes_nothing(design: str) -> None:
    model = zeroed(random_model(design), 1)
    scores = probes.causal_scores(model, IDS, **QUIET)
    loss = probes.layer_pruning(model, IDS, **QUIET)["loss_increase"][1]
    assert scores["branch_score"][0, 2] > 1e-2
    if design == "moda":  # its slots are dropped, and they had a share; the last layer's nobody reads
        last = probes.layer_pruning(zeroed(random_model(design), L - 1), IDS, **QUIET)
        assert last["loss_increase"][L - 1] == pytest.approx(0.0, abs=1e-12)
    elif design in ("full_attnres", "block_attnres"):  # a source of zeros had a share, which the next norm hides
        assert scores["branch_score"][1, 2] < 1e-4 and abs(loss) < 1e-4
    else:
        assert scores["score"][1, 2] == pytest.approx(0.0, abs=1e-12) and loss == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("design", DESIGNS)
def test_permutation_scores_are_those_of_exchanged_weights(design: str) -> None:
    model = random_model(design)
    result = probes.permutation_scores(model, IDS, batch_size=2, **QUIET)
    before = window_losses(model, IDS).mean()
    paper = probes.permutation_score(result)
    for a in range(L):
        assert np.isnan(paper[a, : a + 1]).all()
        for b in range(a + 1, L):
            after = window_losses(exchanged(model, a, b, BRANCHES), IDS).mean()
            assert paper[a, b] == pytest.approx(float((after - before).abs() / before), rel=1e-8)
    late = probes.permutation_scores(model, IDS, first_layer=1, **QUIET)["score"]
    assert np.isnan(late[0]).all() and late[1, 2] == pytest.approx(result["score"][1, 2])


@pytest.mark.parametrize("skip", ["silent", "reference"])
@pytest.mark.parametrize("design", ["deepnorm", "hc", "block_attnres", "moda"])
def test_pruning_is_the_loss_of_the_skipped_model(design: str, skip: Any) -> None:
    model = random_model(design)
    result = probes.layer_pruning(model, IDS, skip=skip, batch_size=2, **QUIET)
    metric = probes.pruned_metric(model, lambda m: float(window_losses(m, IDS).mean()), skip=skip, progress=False)
    assert result["loss"] == pytest.approx(metric.attrs["whole"], rel=1e-10)
    assert result["pruned_loss"] == pytest.approx(metric["value"].to_numpy(), rel=1e-9)
    assert result["loss_increase"] == pytest.approx(metric["change"].to_numpy(), abs=1e-9)
    only = probes.pruned_metric(model, lambda m: float(window_losses(m, IDS).mean()), layers=[2], progress=False)
    assert list(only["layer"]) == [2]


def test_angles_are_exact_at_both_ends() -> None:
    x = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    across = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x, across = x / x.norm(), across - (across @ x) * x / (x @ x)
    across = across / across.norm()
    assert probes.angle_between(x, 3 * x) == pytest.approx(0.0, abs=1e-15)
    assert float(probes.angle_between(x, -2 * x)) == 1.0
    for angle in (1e-5, 1e-9, 0.3, 2.0, math.pi - 1e-5):
        turned = math.cos(angle) * x + math.sin(angle) * across
        assert float(probes.angle_between(x, turned)) == pytest.approx(angle / math.pi, rel=1e-6)


@torch.no_grad()
def test_angular_distances_of_pre_ln_by_hand() -> None:
    model = random_model("pre_ln")
    with branch_outputs(model) as heard:
        model(IDS)
    z = [model.embeddings(IDS)]
    for l in range(L):
        z.append(z[-1] + heard[2 * l] + heard[2 * l + 1])
    result = probes.angular_distance(model, IDS, batch_size=2, **QUIET)
    for i in range(L + 1):
        for j in range(L + 1):
            cos = torch.nn.functional.cosine_similarity(z[i], z[j], dim=-1).clamp(-1, 1)
            d = cos.arccos() / math.pi
            for name, value in (("all_tokens", d), ("without_first", d[:, 1:]), ("last_token", d[:, -1])):
                assert result[name][i, j] == pytest.approx(float(value.mean()), abs=1e-7)


@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_what_a_position_is(design: str) -> None:
    model = random_model(design)
    d = probes.angular_distance(model, IDS, **QUIET)["all_tokens"]
    assert (np.diag(d) == 0).all() and (d == d.T).all() and (d[np.triu_indices(L + 1, 1)] > 1e-3).all()
    quiet = copy.deepcopy(model)
    for l in range(L):
        quiet = zeroed(quiet, l)
    d = probes.angular_distance(quiet, IDS, **QUIET)["all_tokens"]
    if design in ("pre_ln", "sandwich_ln", "lns", "full_attnres", "block_attnres", "moda", "depth_mup"):
        assert d == pytest.approx(0.0, abs=1e-7)  # nothing was written: every state is along the embedding
