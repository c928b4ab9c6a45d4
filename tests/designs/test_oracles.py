"""Every registered design against its equations, with random parameters: logits, gradients, what branches return.

A new design is picked up from the registry; it adds its equations to the oracles and its options to `cases`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import depthbench as db
from depthbench.probes.tap import branch_outputs

from .cases import CASES, DESIGNS, SHAPE, START_VARIANTS, VARIANTS, random_model, tokens
from .oracles import oracle, oracle_trace


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_model_equals_the_equations(design: str, options: dict[str, Any]) -> None:
    model = random_model(design, **options)
    expected = oracle(design, dict(model.state_dict()), SHAPE, options, tokens())
    assert expected.std() > 0.1, "random parameters must make random logits, or the comparison shows nothing"
    torch.testing.assert_close(model(tokens()), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("design", "options"), [*((name, {}) for name in DESIGNS), ("block_attnres", {"block_size_sublayers": 4})], ids=str
)
def test_gradients_equal_the_equations(design: str, options: dict[str, Any]) -> None:
    model = random_model(design, **options)
    parameters = dict(model.named_parameters())
    logits = oracle(design, parameters, SHAPE, options, tokens())
    expected = torch.autograd.grad(logits.square().mean(), list(parameters.values()), allow_unused=True)
    model(tokens()).square().mean().backward()
    for (name, parameter), grad in zip(parameters.items(), expected, strict=True):
        want = torch.zeros_like(parameter) if grad is None else grad
        got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("design", DESIGNS)
def test_what_branches_return_equals_the_equations(design: str) -> None:
    model = random_model(design)
    with branch_outputs(model) as outputs:
        model(tokens())
    trace = oracle_trace(design, dict(model.state_dict()), SHAPE, {}, tokens())
    assert len(outputs) == SHAPE.n_sublayers
    for got, want in zip(outputs, trace.writes, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("design", ["block_attnres", "moda"])
def test_equations_at_another_shape(design: str) -> None:
    """Five layers, one head of width 38: no multiple of 8, one group, a short last block; more slots than tokens."""
    shape = db.Shape(n_layers=5, d_model=38, n_heads=1, d_ff=16, vocab_size=31)
    options = {"block_size_sublayers": 4} if design == "block_attnres" else {}
    model = random_model(design, shape, **options)
    expected = oracle(design, dict(model.state_dict()), shape, options, tokens())
    torch.testing.assert_close(model(tokens()), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_option_changes_the_model(design: str) -> None:
    options = db.designs.get(design).options
    equations, start = VARIANTS.get(design, []), START_VARIANTS.get(design, [])
    assert {key for case in [*equations, *start] for key in case} == set(options), "each option needs a variant"
    base = random_model(design)(tokens())
    for case in equations:  # the exit of mHC shows through the last norm's eps only, hence the tolerance
        assert not torch.allclose(random_model(design, **case)(tokens()), base, rtol=1e-9, atol=1e-12), case
    fresh = db.build_model(design, SHAPE)(tokens())
    for case in start:
        assert not torch.allclose(db.build_model(design, SHAPE, **case)(tokens()), fresh), case
        torch.testing.assert_close(random_model(design, **case)(tokens()), base)


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_causal_to_the_bit(design: str, options: dict[str, Any]) -> None:
    model = random_model(design, **options).float()
    ids, changed = tokens(), tokens()
    changed[:, 4] = (changed[:, 4] + 1) % SHAPE.vocab_size
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("design", DESIGNS)
def test_rows_of_a_batch_do_not_meet(design: str) -> None:
    model, ids = random_model(design), tokens(batch=4)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(model(ids[order]), model(ids)[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("design", DESIGNS)
def test_recomputing_blocks_changes_nothing(design: str) -> None:
    from olmo_core.nn.transformer import TransformerActivationCheckpointingMode as Mode

    grads = []
    for mode, how in [(None, {}), (Mode.full, {}), (Mode.selected_modules, {"modules": ["blocks.*.attention"]})]:
        model = random_model(design).float()
        if mode is not None:
            model.apply_activation_checkpointing(mode, **how)
        model(tokens()).square().mean().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    for again in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grads[0], again, strict=True))


@pytest.mark.parametrize("design", ["hc", "mhc", "full_attnres"])
def test_coefficients_stay_wide_under_mixed_precision(design: str) -> None:
    module = random_model(design).float().blocks["1"].attention_residual
    streams = torch.randn(4, 2, 5, SHAPE.d_model, generator=torch.Generator().manual_seed(0)).bfloat16()
    if design == "full_attnres":
        compute, argument = module.mix.weights, streams.unbind(0)
    else:
        compute, argument = module.coefficients, streams.movedim(0, -2)
    narrow = compute(argument)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = compute(argument)
    torch.testing.assert_close(mixed, narrow, rtol=0, atol=0)
