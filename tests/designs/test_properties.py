"""Every design at random shapes and options: it builds, counts itself, is finite, causal, and equals its equations."""

from __future__ import annotations

import types
import typing
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import depthbench as db
from depthbench.model import model_config

from .cases import DESIGNS, START_VARIANTS, random_model
from .oracles import oracle

# Values for options whose type says too little; other numbers come from `NUMBERS`.
RANGES: dict[str, st.SearchStrategy[Any]] = {
    "block_size_sublayers": st.integers(1, 15),  # up to 14 sublayers: odd sizes, a short last block, one block
    "n_streams": st.integers(1, 5),
    "norm_eps": st.sampled_from([1e-8, 1e-5, 1e-2]),
    "alpha": st.floats(0.5, 16),
}
NUMBERS: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(1, 4),
    float: st.floats(0.1, 2.0),
    type(None): st.none(),
}


def values(name: str, kind: Any) -> st.SearchStrategy[Any]:
    """Values of one option, by its type."""
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if isinstance(kind, types.UnionType):
        return st.one_of(*(values(name, part) for part in typing.get_args(kind)))
    if name in RANGES and kind in (int, float):
        return RANGES[name]
    return NUMBERS[kind]


@st.composite
def shapes(draw: st.DrawFn) -> db.Shape:
    n_heads = draw(st.integers(1, 4))
    return db.Shape(
        n_layers=draw(st.integers(1, 7)),
        n_heads=n_heads,
        n_kv_heads=draw(st.sampled_from([k for k in range(1, n_heads + 1) if n_heads % k == 0])),
        d_model=n_heads * 2 * draw(st.integers(1, 10)),
        d_ff=draw(st.integers(1, 24)),
        vocab_size=draw(st.integers(2, 40)),
    )


@st.composite
def tokens_of(draw: st.DrawFn, vocab_size: int) -> torch.Tensor:
    batch, length = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randint(0, vocab_size, (batch, length), generator=generator)


@pytest.mark.parametrize("design", DESIGNS)
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_shape_and_options(design: str, data: st.DataObject) -> None:
    shape = data.draw(shapes(), label="shape")
    kinds = typing.get_type_hints(db.designs.load(design))
    own = {name: values(name, kinds[name]) for name in db.designs.get(design).options}
    options = data.draw(st.fixed_dictionaries(own), label="options")
    start_only = {name for case in START_VARIANTS.get(design, []) for name in case}  # no part of the equations
    ids = data.draw(tokens_of(shape.vocab_size), label="ids")

    model = random_model(design, shape, **options)
    n_params = sum(parameter.numel() for parameter in model.parameters())
    assert shape.num_params(design, **options).total == n_params == model_config(design, shape, **options).num_params
    with torch.no_grad():
        logits = model(ids)
        assert logits.shape == (*ids.shape, shape.vocab_size) and torch.isfinite(logits).all()
        equations = {name: value for name, value in options.items() if name not in start_only}
        expected = oracle(design, dict(model.state_dict()), shape, equations, ids)
        torch.testing.assert_close(logits, expected, rtol=1e-8, atol=1e-8)
        changed = ids.clone()
        changed[:, -1] = (changed[:, -1] + 1) % shape.vocab_size
        after = model(changed)
    assert torch.equal(after[:, :-1], logits[:, :-1]), "the past must not see the future"
    if shape.d_model > 4:  # two numbers less their mean, and normed, are (1, -1): there, tokens may look alike
        assert not torch.equal(after[:, -1], logits[:, -1])
