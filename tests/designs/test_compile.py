"""torch.compile of every block, as OLMo-core's trainer asks for it: the same numbers, and few graphs at any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from olmo_core.nn.transformer import TransformerActivationCheckpointingMode as Mode
from torch._dynamo.utils import counters

import depthbench as db

from .cases import DESIGNS, loss_of, random_model, tokens

OPTIONS = {"block_attnres": {"block_size_sublayers": 3}}
SMALL = db.Shape(n_layers=2, d_model=24, n_heads=4, n_kv_heads=2, d_ff=40, vocab_size=31)
DEEP = db.Shape(n_layers=24, d_model=8, n_heads=2, n_kv_heads=1, d_ff=8, vocab_size=31)


@pytest.fixture
def compile_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any, str], None]]:
    """Compile a model's blocks with a backend (`apply_compile` names none), from a clean slate and back to one."""
    sources = torch.compiler.config.dynamic_sources
    torch._dynamo.reset()
    counters.clear()

    def compile_with(model: Any, backend: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "compile", partial(torch.compile, backend=backend))
            model.apply_compile()

    yield compile_with
    torch._dynamo.reset()
    counters.clear()
    torch.compiler.config.dynamic_sources = sources


@pytest.mark.parametrize("design", DESIGNS)
def test_compiled_equals_eager(design: str, compile_with: Callable[[Any, str], None]) -> None:
    """Forward and backward are traced and then run op by op: only decompositions may round anew."""
    eager, compiled = (random_model(design, SMALL, **OPTIONS.get(design, {})).float() for _ in range(2))
    compile_with(compiled, "aot_eager")
    losses = [loss_of(model, tokens()) for model in (eager, compiled)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)
    for loss in losses:
        loss.backward()
    assert counters["stats"]["unique_graphs"] >= 2, "block and head, or it compares eager with eager"
    for (name, parameter), other in zip(eager.named_parameters(), compiled.parameters(), strict=True):
        assert parameter.grad is not None and other.grad is not None
        # As between two ranks: an entry of its tensor's size, and sums whose terms cancel of that of a usual gradient.
        allowed = 1e-5 * parameter.grad.abs().max() + 1e-7
        assert (other.grad - parameter.grad).abs().max() <= allowed, name


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
def test_depth_stays_within_the_recompile_limit(
    design: str, checkpointed: bool, compile_with: Callable[[Any, str], None]
) -> None:
    """Beyond the limit, 8 by default, later layers run uncompiled, with one warning. Half is left for other lengths.

    A training step and then a pass without gradients, as an evaluation between steps makes it, in 24 layers.
    """
    eager, model = (random_model(design, DEEP).float() for _ in range(2))
    if checkpointed:
        model.apply_activation_checkpointing(Mode.selected_modules, modules=["blocks.*.attention"])
    compile_with(model, "aot_eager")
    ids = tokens(batch=1, length=4)
    with torch._dynamo.config.patch(recompile_limit=4, fail_on_recompile_limit_hit=True):
        for m in (eager, model):
            loss_of(m, ids).backward()
        with torch.no_grad():
            torch.testing.assert_close(loss_of(model, ids), loss_of(eager, ids), rtol=1e-5, atol=0)
    graphs = counters["stats"]["unique_graphs"]
    assert 2 <= graphs <= 16, f"{graphs} graphs: block and head at least, and not one a layer"
    for (name, parameter), other in zip(eager.named_parameters(), model.parameters(), strict=True):
        assert parameter.grad is not None and other.grad is not None
        assert (other.grad - parameter.grad).abs().max() <= 1e-4 * parameter.grad.abs().max() + 1e-6, name


@pytest.mark.parametrize("design", ["full_attnres", "moda"])
def test_a_model_compiled_whole_equals_eager(design: str, compile_with: Callable[[Any, str], None]) -> None:
    """`torch.compile(model)`, which leaves no part out as `apply_compile` does for these designs."""
    eager = random_model(design, SMALL, **OPTIONS.get(design, {})).float()
    gradients = []
    for model in (eager, torch.compile(eager, backend="aot_eager")):
        eager.zero_grad()
        loss = loss_of(model, tokens())
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in eager.parameters() if p.grad is not None)])
    assert counters["stats"]["unique_graphs"] >= 1
    for a, b in zip(*gradients, strict=True):
        assert (a - b).abs().max() <= 1e-5 * a.abs().max() + 1e-7
