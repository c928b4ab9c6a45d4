"""What each design's equations imply: limits in which it is another design, published constants, invariants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import depthbench as db
from depthbench.designs.deepnorm import skip_factor, start_factor
from depthbench.model import model_config

from .cases import SHAPE, connections, random_model, tokens
from .oracles_depth import block_source_sets

ONE_LAYER = db.Shape(n_layers=1, d_model=24, n_heads=4, n_kv_heads=2, d_ff=40, vocab_size=31)


def empty_model(design: str, n_layers: int, **options: Any) -> Any:
    """Without values, for what does not depend on them."""
    shape = db.Shape(n_layers=n_layers, d_model=4, n_heads=1, d_ff=4, vocab_size=2)
    return model_config(design, shape, **options).build(init_device="meta")


@pytest.mark.parametrize(
    ("design", "options"), [("lns", {}), ("lns", {"depth_scaled": True}), ("moda", {}), ("moda", {"ffn_kv": False})]
)
def test_one_layer_is_pre_ln(design: str, options: dict[str, Any]) -> None:
    plain, model = db.build_model("pre_ln", ONE_LAYER, seed=1), db.build_model(design, ONE_LAYER, seed=1, **options)
    assert torch.equal(model(tokens()), plain(tokens()))


def test_sandwich_without_its_output_norms_is_pre_ln() -> None:
    model = random_model("sandwich_ln")
    for connection in connections(model):
        connection.post_norm = nn.Identity()
    assert torch.equal(model(tokens()), random_model("pre_ln")(tokens()))


def test_blocks_of_one_sublayer_are_full_attention_residuals() -> None:
    full, block = random_model("full_attnres"), random_model("block_attnres", block_size_sublayers=1)
    assert torch.equal(block(tokens()), full(tokens()))


# ---- constants --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_layers", "alpha", "beta"),
    [
        (12, 2.213364, 0.319472),
        (16, 2.378414, 0.297302),
        (20, 2.514867, 0.281171),
        (24, 2.632148, 0.268642),
        (28, 2.735565, 0.258487),
        (32, 2.828427, 0.250000),
        (42, 3.027400, 0.233569),
        (70, 3.439791, 0.205567),
    ],
)
def test_deepnorm_constants(n_layers: int, alpha: float, beta: float) -> None:
    assert skip_factor(n_layers) == pytest.approx(alpha, abs=5e-7)
    assert start_factor(n_layers) == pytest.approx(beta, abs=5e-7)
    assert skip_factor(n_layers) * start_factor(n_layers) == pytest.approx(0.7071068, abs=5e-8)
    assert {c.alpha for c in connections(empty_model("deepnorm", n_layers))} == {skip_factor(n_layers)}


def test_deepnorm_subtracts_the_mean_and_its_final_norm_does_not() -> None:
    shifted = torch.randn(3, 24) + 5
    for norm, mean_is_zero in (("layer", True), ("rms", False)):
        model: Any = db.build_model("deepnorm", SHAPE, norm=norm)
        assert (model.blocks["0"].attention_norm(shifted).mean(-1).abs().max() < 1e-6) == mean_is_zero
        assert model.lm_head.norm(shifted).mean(-1).abs().max() > 0.5
        assert all("bias" not in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("n_layers", [1, 2, 24, 70])
def test_keel_constants(n_layers: int) -> None:
    first, second, *others = connections(empty_model("keel", n_layers))
    assert (first.alpha, first.post_norm) == (1.0, None)
    assert second.alpha == 1.0 and second.post_norm is not None
    assert all(c.alpha == 2 * n_layers and c.post_norm is not None for c in others)
    assert all(c.alpha == 3.5 for c in connections(empty_model("keel", n_layers, alpha=3.5))[2:])


def test_lns_constants() -> None:
    factors = [c.factor for c in connections(empty_model("lns", 70))]
    assert factors[0::2] == factors[1::2], "the factor belongs to the layer, not to the sublayer"
    expected = {1: 1, 2: 0.70711, 3: 0.57735, 4: 0.5, 32: 0.176777, 70: 0.119523}
    assert {n: factors[2 * (n - 1)] for n in expected} == pytest.approx(expected, abs=5e-6)
    assert {c.factor for c in connections(empty_model("lns", 70, depth_scaled=True))} == {70**-0.5}
    assert not list(empty_model("lns", 4).blocks.buffers()), "init_weights() empties buffers"


@pytest.mark.parametrize(("n_layers", "size"), [(1, 1), (3, 1), (8, 2), (16, 4), (20, 5), (24, 6), (28, 7), (32, 8)])
def test_block_attention_residuals_make_eight_blocks(n_layers: int, size: int) -> None:
    sources = [c.source for c in connections(empty_model("block_attnres", n_layers))]
    assert sources == [1 + j // size for j in range(2 * n_layers)]
    if n_layers >= 4:
        assert max(sources) == 8


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 10, 11])
def test_block_sources_are_sums_of_blocks_and_survive_what_is_left_out(size: int) -> None:
    cs = connections(
        db.build_model("block_attnres", SHAPE.model_copy(update={"n_layers": 5}), block_size_sublayers=size)
    )
    for left_out in (set(), {3}, {2, 3}, {4}, {0, 1, 2, 3}):
        state: tuple[Any, ...] = (torch.tensor(1000.0),)
        for j, connection in enumerate(cs):
            before = state
            if j not in left_out:
                state = connection.write(state, torch.tensor(2.0**j), norm=nn.Identity())
                assert len(before) in (len(state), len(state) - 1) or left_out, "one new source at most"
            assert before[0] == 1000  # earlier states stay as they were
        sums = [sum(2.0**j for j in members if j not in left_out) for members in block_source_sets(10, size)]
        assert [0.0 if v is None else float(v) for v in state[1:]] == sums
        assert len(state) - 1 == len(sums)


# ---- MoDA -------------------------------------------------------------------------------------------------------


def test_moda_sees_distances_only_unless_depth_keys_stay_unrotated() -> None:
    for design, options, same in (
        ("pre_ln", {}, True),
        ("moda", {}, True),
        ("moda", {"rotate_depth_keys": False}, False),
    ):
        model = random_model(design, **options)
        at_zero = model(tokens())
        tables = dict(model.blocks["0"].attention.rope._cache)
        for block in model.blocks.values():  # all positions five further on
            for name in ("rope_pos_sin", "rope_pos_cos"):
                block.attention.rope._cache[name] = tables[name][5:]
        assert torch.allclose(model(tokens()), at_zero, rtol=1e-9, atol=1e-9) == same, (design, options)


def test_moda_refuses_what_it_would_ignore() -> None:
    model = db.build_model("moda", SHAPE)
    with pytest.raises(NotImplementedError, match="max_doc_len"):
        model(tokens(), doc_lens=torch.tensor([[3, 4], [7, 0]]), max_doc_lens=[4, 7])


@pytest.mark.parametrize("design", ["depth_mup", "complete_p"])
def test_depth_scaling_is_pre_ln_at_its_base_depth(design: str) -> None:
    assert torch.equal(random_model(design, base_layers=SHAPE.n_layers)(tokens()), random_model("pre_ln")(tokens()))
    assert db.designs.configure(design).optimizer_scales(24) == {"blocks.*": {"lr": 1.0, "eps": 1.0}}


def test_depth_scaling_of_rate_and_eps() -> None:
    """At 4 times the base depth Depth-muP halves the blocks' rate and eps; CompleteP keeps the rate, quarters eps."""
    assert db.designs.configure("depth_mup").optimizer_scales(96) == {"blocks.*": {"lr": 0.5, "eps": 0.5}}
    assert db.designs.configure("complete_p").optimizer_scales(96) == {"blocks.*": {"lr": 1.0, "eps": 0.25}}
