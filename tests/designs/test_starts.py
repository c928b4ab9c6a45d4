"""How every design starts: the shared backbone, its own values, and which ones start as Pre-LN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import depthbench as db
from depthbench.model import model_config

from .cases import DESIGNS, SHAPE, START_VARIANTS, VARIANTS, connections, tokens

WITH_START_OPTIONS = [
    (name, options)
    for name in DESIGNS
    for options in [{}, *VARIANTS.get(name, [])[:1], *START_VARIANTS.get(name, [])[-1:]]
]


@pytest.mark.parametrize(("design", "options"), WITH_START_OPTIONS, ids=str)
def test_start_is_the_same_from_cpu_and_from_meta(design: str, options: dict[str, Any]) -> None:
    states = []
    for device in ("cpu", "meta"):
        model = model_config(design, SHAPE, seed=5, **options).build(init_device=device)
        model.init_weights(device=torch.device("cpu"))
        states.append(model.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
        assert torch.isfinite(value).all(), name


@pytest.fixture
def one_rank_mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_start_is_the_same_sharded(one_rank_mesh: Any) -> None:
    for design in DESIGNS:
        model = model_config(design, SHAPE, seed=5).build(init_device="meta")
        model.apply_fsdp(one_rank_mesh)
        model.init_weights(device=torch.device("cpu"))
        whole = db.build_model(design, SHAPE, seed=5)
        for (name, value), want in zip(model.named_parameters(), whole.parameters(), strict=True):
            assert torch.equal(value.full_tensor(), want), (design, name)
        torch.testing.assert_close(model(tokens()), whole(tokens()))


@pytest.mark.parametrize("design", DESIGNS)
def test_seed_sets_the_backbone_and_only_the_seed(design: str) -> None:
    base = db.build_model("pre_ln", SHAPE, seed=1).state_dict()
    torch.manual_seed(99)  # no design draws from the global stream
    same, other = (db.build_model(design, SHAPE, seed=seed).state_dict() for seed in (1, 2))
    for name in base:
        if rescaled(design, name):
            cosine = torch.nn.functional.cosine_similarity(base[name].flatten(), same[name].flatten(), dim=0)
            assert cosine == pytest.approx(1), name
        else:
            assert torch.equal(base[name], same[name]), f"{name}: the shared backbone must not depend on the design"
        assert name.endswith("norm.weight") or not torch.equal(base[name], other[name])
    torch.manual_seed(7)
    again = db.build_model(design, SHAPE, seed=1).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in same.items())


def rescaled(design: str, name: str) -> bool:
    """Whether a design's source multiplies this weight of the backbone at the start."""
    parts = {
        "hc": ("attention.w_out", "feed_forward.w2"),
        "mhc": ("attention.w_out", "feed_forward.w2"),
        "deepnorm": ("attention.w_v", "attention.w_out", "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
    }
    return any(part in name for part in parts.get(design, ()))


def test_pre_ln_is_the_stock_model() -> None:
    from olmo_core.nn.feed_forward import FeedForwardConfig
    from olmo_core.nn.transformer import TransformerConfig

    stock = TransformerConfig.llama_like(
        d_model=24,
        vocab_size=31,
        n_layers=3,
        n_heads=4,
        n_kv_heads=2,
        rope_theta=10_000,
        layer_norm_eps=1e-6,
        init_seed=1,
        feed_forward=FeedForwardConfig(hidden_size=40, bias=False),
    ).build()
    stock.init_weights(device=torch.device("cpu"))
    ours = db.build_model("pre_ln", SHAPE, seed=1)
    assert torch.equal(stock(tokens()), ours(tokens()))
    stock.load_state_dict(ours.state_dict(), strict=True)


def test_hc_starts() -> None:
    hc = db.build_model("hc", SHAPE, seed=1, n_streams=3)
    plain = db.build_model("pre_ln", SHAPE, seed=1)
    for j, connection in enumerate(connections(hc)):
        home = torch.eye(3)[:, j % 3 : j % 3 + 1]
        assert torch.equal(connection.static_alpha, torch.cat([home, torch.eye(3)], 1))
        assert torch.equal(connection.static_beta, torch.ones(3))
        assert not connection.dynamic_alpha_proj.any() and not connection.dynamic_beta_proj.any()
        assert connection.dynamic_alpha_scale.item() == connection.dynamic_beta_scale.item() == pytest.approx(0.01)
    for layer in ("0", "1", "2"):
        scaled, unscaled = hc.blocks[layer].attention.w_out.weight, plain.blocks[layer].attention.w_out.weight
        torch.testing.assert_close(scaled, unscaled / 3**0.5)


@pytest.mark.parametrize(
    ("init", "gap", "kept", "read", "carry"),
    [("gap8", 8.0, 0.0, (3.354e-4, 0.999665), (0.998995, 3.35e-4)), ("paper", 3.0, 3.0, (0.047426, 0.952574), None)],
)
def test_mhc_starts(init: Any, gap: float, kept: float, read: Any, carry: Any) -> None:
    model = db.build_model("mhc", SHAPE, init=init)
    for j, connection in enumerate(connections(model)):
        pre, post, res = connection.bias.split([4, 4, 16])
        assert torch.equal(pre, torch.where(torch.arange(4) == j % 4, gap, -gap))
        assert not post.any() and not connection.phi.any()
        assert torch.equal(res.view(4, 4), torch.full((4, 4), -gap).fill_diagonal_(kept))
        for alpha in (connection.alpha_pre, connection.alpha_post, connection.alpha_res):
            assert alpha.shape == (1,) and alpha.item() == pytest.approx(0.01)
        with torch.no_grad():
            a, c, r = connection.coefficients(torch.randn(1, 1, 4, SHAPE.d_model))
        assert a.min().item() == pytest.approx(read[0], rel=1e-3) and a.max().item() == pytest.approx(read[1], rel=1e-5)
        assert torch.equal(c, torch.ones_like(c))
        diagonal, off = carry or (0.992619, (1 - 0.992619) / 3)
        torch.testing.assert_close(r[0, 0], torch.full((4, 4), off).fill_diagonal_(diagonal), rtol=1e-3, atol=1e-6)
    plain = db.build_model("pre_ln", SHAPE)
    torch.testing.assert_close(model.blocks["2"].feed_forward.w2.weight, plain.blocks["2"].feed_forward.w2.weight / 2)


def test_attention_residuals_start_uniform() -> None:
    for design in ("full_attnres", "block_attnres"):
        model = db.build_model(design, SHAPE)
        assert model.blocks["0"].attention_residual.mix is None
        for mix in (*(c.mix for c in connections(model)[1:]), model.residual_ends.mix):
            assert not mix.query.any()
            assert torch.equal(mix.gain, torch.ones(24))


@pytest.mark.parametrize("design", ["sandwich_ln", "keel"])
def test_post_norms_start_at_one(design: str) -> None:
    options = {"embedding_norm": True} if design == "sandwich_ln" else {}
    model = db.build_model(design, SHAPE, **options)
    gains = {name: gain for name, gain in model.named_parameters() if "post_norm" in name or "embedding_norm" in name}
    assert len(gains) == {"sandwich_ln": 7, "keel": 5}[design]
    assert all(torch.equal(gain, torch.ones(24)) for gain in gains.values())


def test_deepnorm_scales_its_start() -> None:
    plain, model = db.build_model("pre_ln", SHAPE), db.build_model("deepnorm", SHAPE)
    beta, n_scaled = (8 * SHAPE.n_layers) ** -0.25, 0
    for (name, value), want in zip(model.named_parameters(), plain.parameters(), strict=True):
        factor = beta if rescaled("deepnorm", name) else 1.0
        n_scaled += factor < 1
        torch.testing.assert_close(value, want * factor, msg=lambda text, name=name: f"{name}: {text}")
    assert n_scaled == 5 * SHAPE.n_layers


def test_moda_projections_start_like_the_backbone() -> None:
    shape = db.Shape(n_layers=3, d_model=128, n_heads=2, d_ff=16, vocab_size=31)
    model = db.build_model("moda", shape, init_std=0.05)
    weights = [c.kv_proj.weight for c in connections(model) if hasattr(c, "kv_proj")]
    assert [tuple(weight.shape) for weight in weights] == [(256, 128)] * 2
    assert not hasattr(connections(model)[-1], "kv_proj")
    for weight in weights:
        # A normal cut at three standard deviations has 0.98658 of its variance's root left.
        assert weight.std().item() == pytest.approx(0.05 * 0.98658, rel=0.02)
        assert 0.14 < weight.abs().max().item() <= 0.15
    assert not torch.equal(*weights)


@pytest.mark.parametrize(
    ("design", "options"),
    [
        ("hc", {"output_scaling": "none"}),
        ("hc", {"n_streams": 1}),
        ("mhc", {"output_scaling": "none"}),
        ("mhc", {"output_scaling": "none", "init": "paper"}),
        ("full_attnres", {"norm_eps": 1e-20}),
        *(("block_attnres", {"block_size_sublayers": size, "norm_eps": 1e-20}) for size in (1, 2, 3, 4, 5, 6)),
    ],
    ids=str,
)
def test_starts_as_pre_ln(design: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Attention Residuals divide the state by the number of sources and mHC's read has weights that do not sum to one:
    # the next norm takes a factor out but for its eps.
    monkeypatch.setattr("depthbench.model.NORM_EPS", 1e-20)
    plain = db.build_model("pre_ln", SHAPE, seed=1, dtype=torch.float64)(tokens())
    torch.testing.assert_close(
        db.build_model(design, SHAPE, seed=1, dtype=torch.float64, **options)(tokens()), plain, rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("design", ["sandwich_ln", "lns", "deepnorm", "keel", "moda"])
def test_starts_unlike_pre_ln(design: str) -> None:
    plain, model = db.build_model("pre_ln", SHAPE, seed=1), db.build_model(design, SHAPE, seed=1)
    assert not torch.allclose(model(tokens()), plain(tokens()), rtol=1e-3)


def test_sandwich_branches_write_mean_square_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthbench.model.NORM_EPS", 1e-20)
    connection = db.build_model("sandwich_ln", SHAPE, dtype=torch.float64).blocks["1"].attention_residual
    y = torch.randn(2, 5, 24, dtype=torch.float64)
    written = connection.write(torch.zeros_like(y), y, norm=torch.nn.Identity())
    torch.testing.assert_close(written.square().mean(-1), torch.ones(2, 5, dtype=torch.float64))


@pytest.mark.parametrize("design", ["full_attnres", "block_attnres"])
def test_an_eps_of_zero_is_zero_and_none_is_the_models(design: str) -> None:
    assert db.build_model(design, SHAPE, norm_eps=0.0).residual_ends.mix.eps == 0.0
    assert db.build_model(design, SHAPE).residual_ends.mix.eps == 1e-6
