"""Every registered design against its equations: float64 oracles, start values, counts, causality, liveness.

A new design is picked up from the registry; it adds its equations to the oracles and, where it has one, a start
contract here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import depthbench as db
from depthbench.designs import UnknownDesign

from .oracles import oracle, oracle_trace, randomise

SHAPE = db.Shape(n_layers=3, d_model=24, n_heads=4, n_kv_heads=2, d_ff=40, vocab_size=31)

# Options under which the equations are checked, beside the defaults; those that act on start values are no equations.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "hc": [{"n_streams": 1}, {"n_streams": 3}, {"mix_streams": False}, {"norm_eps": 1e-2}],
    "full_attnres": [{"norm_eps": 1e-3}],
}
START_ONLY = {"hc": ("output_scaling",)}
CASES = [(name, options) for name in db.designs.names() for options in [{}, *VARIANTS.get(name, [])]]


def tokens(batch: int = 2, length: int = 7, seed: int = 0) -> Tensor:
    return torch.randint(0, SHAPE.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def random_model(design: str, **options: Any) -> Any:
    model = db.build_model(design, SHAPE, dtype=torch.float64, **options)
    randomise(model, seed=3)
    return model


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_model_equals_the_equations(design: str, options: dict[str, Any]) -> None:
    model = random_model(design, **options)
    expected = oracle(design, dict(model.state_dict()), SHAPE, options, tokens())
    assert expected.std() > 0.1, "random parameters must make random logits, or the comparison shows nothing"
    torch.testing.assert_close(model(tokens()), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("design", db.designs.names())
def test_gradients_equal_the_equations(design: str) -> None:
    model = random_model(design)
    parameters = dict(model.named_parameters())
    expected = torch.autograd.grad(
        oracle(design, parameters, SHAPE, {}, tokens()).square().mean(), list(parameters.values()), allow_unused=True
    )
    model(tokens()).square().mean().backward()
    for (name, parameter), grad in zip(parameters.items(), expected, strict=True):
        want = torch.zeros_like(parameter) if grad is None else grad
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("design", db.designs.names())
def test_what_branches_return_equals_the_equations(design: str) -> None:
    from depthbench.probes.tap import branch_outputs

    model = random_model(design)
    with branch_outputs(model) as outputs:
        model(tokens())
    trace = oracle_trace(design, dict(model.state_dict()), SHAPE, {}, tokens())
    assert len(outputs) == SHAPE.n_sublayers
    for got, want in zip(outputs, trace.writes, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
@pytest.mark.parametrize(
    "shape", [SHAPE, db.Shape(n_layers=5, d_model=12, n_heads=1, d_ff=16, vocab_size=9)], ids=["gqa", "odd"]
)
def test_counts_closed_form_config_and_model(design: str, options: dict[str, Any], shape: db.Shape) -> None:
    from depthbench.model import model_config

    model = db.build_model(design, shape, **options)
    count = shape.num_params(design, **options)
    numel = sum(parameter.numel() for parameter in model.parameters())
    assert count.total == numel == model.num_params == model_config(design, shape, **options).num_params
    own = sum(
        p.numel() for name, p in model.named_parameters() if "_residual." in name or name.startswith("residual_ends")
    )
    assert count.design == own


@pytest.mark.parametrize("design", db.designs.names())
def test_start_is_the_same_from_cpu_and_from_meta(design: str) -> None:
    from depthbench.model import model_config

    states = []
    for device in ("cpu", "meta"):
        model = model_config(design, SHAPE, seed=5).build(init_device=device)
        model.init_weights(device=torch.device("cpu"))
        states.append(model.state_dict())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name
        assert torch.isfinite(value).all(), name


@pytest.mark.parametrize("design", db.designs.names())
def test_seed_sets_the_backbone_and_only_the_seed(design: str) -> None:
    base = db.build_model("pre_ln", SHAPE, seed=1).state_dict()
    same, other = (db.build_model(design, SHAPE, seed=seed).state_dict() for seed in (1, 2))
    for name in ("embeddings.weight", "blocks.1.attention.w_q.weight", "lm_head.w_out.weight"):
        assert torch.equal(base[name], same[name]), "the shared backbone must not depend on the design"
        assert not torch.equal(base[name], other[name])


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


def test_start_values() -> None:
    hc = db.build_model("hc", SHAPE, seed=1, n_streams=3)
    plain = db.build_model("pre_ln", SHAPE, seed=1)
    for layer in range(3):
        for j, part in enumerate(("attention", "feed_forward")):
            residual = getattr(hc.blocks[str(layer)], f"{part}_residual")
            home = torch.zeros(3, 1)
            home[(2 * layer + j) % 3] = 1
            assert torch.equal(residual.static_alpha, torch.cat([home, torch.eye(3)], 1))
            assert torch.equal(residual.static_beta, torch.ones(3))
            assert not residual.dynamic_alpha_proj.any()
            assert not residual.dynamic_beta_proj.any()
            assert residual.dynamic_alpha_scale.item() == residual.dynamic_beta_scale.item() == pytest.approx(0.01)
        scaled, unscaled = hc.blocks[str(layer)].attention.w_out.weight, plain.blocks[str(layer)].attention.w_out.weight
        torch.testing.assert_close(scaled, unscaled / 3**0.5)
    attnres = db.build_model("full_attnres", SHAPE)
    assert attnres.blocks["0"].attention_residual.mix is None
    for mix in (attnres.blocks["0"].feed_forward_residual.mix, attnres.residual_ends.mix):
        assert not mix.query.any()
        assert torch.equal(mix.gain, torch.ones(24))


@pytest.mark.parametrize(
    ("design", "options"),
    [("hc", {"output_scaling": "none"}), ("hc", {"n_streams": 1}), ("full_attnres", {"norm_eps": 1e-20})],
    ids=str,
)
def test_starts_as_pre_ln(design: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Attention Residuals divide the state by the number of sources, which the next norm takes out but for its eps.
    monkeypatch.setattr("depthbench.model.NORM_EPS", 1e-20)
    plain = db.build_model("pre_ln", SHAPE, seed=1, dtype=torch.float64)(tokens())
    torch.testing.assert_close(
        db.build_model(design, SHAPE, seed=1, dtype=torch.float64, **options)(tokens()), plain, rtol=1e-6, atol=1e-7
    )


def test_published_counts() -> None:
    olmo_1b = db.Shape(n_layers=16, d_model=2048, n_heads=16, d_ff=5461, vocab_size=10)
    assert olmo_1b.num_params("hc").design == 394_048  # the source's table, 32 connections
    deep = db.Shape(n_layers=48, d_model=150, n_heads=1, d_ff=400, vocab_size=10)
    # The source counts an inert query and gain of the first sublayer.
    assert deep.num_params("full_attnres").design == 29_100 - 2 * 150


@pytest.mark.parametrize("design", db.designs.names())
def test_causal_to_the_bit(design: str) -> None:
    model = random_model(design).float()
    ids, changed = tokens(), tokens()
    changed[:, 4] = (changed[:, 4] + 1) % SHAPE.vocab_size
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("design", db.designs.names())
def test_rows_of_a_batch_do_not_meet(design: str) -> None:
    model, ids = random_model(design), tokens(batch=4)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(model(ids[order]), model(ids)[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("design", db.designs.names())
def test_every_parameter_lives(design: str) -> None:
    """Over several steps from the start every tensor gets a finite gradient that is not zero, and moves."""
    torch.manual_seed(0)
    model = db.build_model(design, SHAPE, seed=1)
    start = {name: value.clone() for name, value in model.named_parameters()}
    seen = dict.fromkeys(start, False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(6):
        ids = tokens(batch=4, length=12, seed=step)
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
            seen[name] |= bool(parameter.grad.any())
        optimizer.step()
    still = [name for name, value in model.named_parameters() if torch.equal(value, start[name]) or not seen[name]]
    assert not still


@pytest.mark.parametrize("design", db.designs.names())
def test_every_option_changes_the_model(design: str) -> None:
    options = db.designs.get(design).options
    tried = {key for case in VARIANTS.get(design, []) for key in case} | set(START_ONLY.get(design, ()))
    assert tried == set(options), "each option of a design needs a variant here"
    base = random_model(design)(tokens())
    for case in VARIANTS.get(design, []):
        assert not torch.allclose(random_model(design, **case)(tokens()), base, rtol=1e-6)


@pytest.mark.parametrize("design", db.designs.names())
def test_configuration_survives_json(design: str) -> None:
    import json

    from olmo_core.config import Config

    from depthbench.model import model_config

    for options in [{}, *VARIANTS.get(design, [])]:
        config = model_config(design, SHAPE, seed=4, **options)
        again = Config.from_dict(json.loads(json.dumps(config.as_config_dict())))
        assert again == config
        assert type(again) is type(config)
        assert again.shape == SHAPE


def test_unknown_names_say_what_is_allowed() -> None:
    with pytest.raises(UnknownDesign, match="full_attnres"):
        db.build_model("resnet", SHAPE)
    with pytest.raises(ValueError, match="n_streams"):
        db.build_model("hc", SHAPE, streams=3)
    with pytest.raises(ValueError, match="at least 1"):
        db.designs.configure("hc", n_streams=0)
    with pytest.raises(ValueError, match="divide"):
        db.designs.configure("hc", output_scaling="halve")


@pytest.mark.parametrize("design", db.designs.names())
def test_cards_are_complete(design: str) -> None:
    card = db.designs.get(design)
    assert card.name == design
    assert card.equation and "$" not in card.equation
    assert card.label == db.published.labels().get(design, card.label)
    assert card.source
