"""Activation checkpointing, through OLMo-core's own switch: nothing changes but what is kept for the backward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from olmo_core.nn.transformer import TransformerActivationCheckpointingMode as Mode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import depthbench as db

from .cases import DESIGNS, loss_of, random_model, tokens

CASES = [*((name, {}) for name in DESIGNS), ("block_attnres", {"block_size_sublayers": 3})]
SHAPE = db.Shape(n_layers=4, d_model=24, n_heads=4, n_kv_heads=2, d_ff=40, vocab_size=31)
DEEP = db.Shape(n_layers=10, d_model=16, n_heads=2, n_kv_heads=1, d_ff=48, vocab_size=31)
MODES: dict[str, tuple[Mode, dict[str, Any]]] = {
    "full": (Mode.full, {}),
    "every-other-block": (Mode.selected_blocks, {"block_interval": 2}),
    "attention": (Mode.selected_modules, {"modules": ["blocks.*.attention"]}),
    "feed-forward": (Mode.selected_modules, {"modules": ["blocks.*.feed_forward"]}),
    "connections": (Mode.selected_modules, {"modules": ["blocks.*_residual"]}),
}


def model_of(design: str, options: dict[str, Any], mode: str | None, shape: db.Shape = SHAPE) -> Any:
    model = random_model(design, shape, **options).float()
    if mode is not None:
        model.apply_activation_checkpointing(MODES[mode][0], **MODES[mode][1])
        n_wrapped = sum(type(module).__name__ == "CheckpointWrapper" for module in model.modules())
        each = {"every-other-block": 0.5, "connections": 2}.get(mode, 1)
        assert n_wrapped == each * shape.n_layers, "wrapped by name: a module that was renamed would go unnoticed"
    return model


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_loss_and_gradients_keep_every_bit(design: str, options: dict[str, Any], mode: str) -> None:
    plain, recomputed = model_of(design, options, None), model_of(design, options, mode)
    for step in range(2):  # gradients add up over two batches, as they do over micro-batches
        losses = [loss_of(model, tokens(length=9, seed=step)) for model in (plain, recomputed)]
        assert torch.equal(*losses)
        for loss in losses:
            loss.backward()
    for (name, parameter), other in zip(plain.named_parameters(), recomputed.parameters(), strict=True):
        assert parameter.grad is not None and torch.equal(parameter.grad, other.grad), name


class Alive(TorchDispatchMode):
    """Remembers every storage made under it, and which of them still live: what the backward pass will need.

    Hooks on saved tensors would not see what a recomputed block keeps: its inputs, held by a closure.
    """

    def __init__(self, given: set[int]) -> None:
        super().__init__()
        self.given, self.made = given, {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, torch.Tensor) and (storage := value.untyped_storage())._cdata not in self.given:
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    def sizes(self) -> dict[int, int]:
        """Bytes of each storage alive."""
        return {key: size for key, (reference, size) in self.made.items() if not reference.expired()}


def kept_bytes(design: str, options: dict[str, Any], mode: str | None) -> int:
    """Bytes alive between the forward and the backward pass, beside the model and its tokens."""
    model, ids = model_of(design, options, mode, DEEP), tokens(length=24)
    loss_of(model, ids)  # fills the tables of rotations
    tables = [t for block in model.blocks.values() for t in block.attention.rope._cache.values()]
    with Alive({t.untyped_storage()._cdata for t in [ids, *model.parameters(), *tables]}) as alive:
        loss = loss_of(model, ids)
        n_bytes = sum(alive.sizes().values())
        loss.backward()
        del loss
        grads = {parameter.grad.untyped_storage()._cdata for parameter in model.parameters()}
        assert alive.sizes().keys() <= grads, "something outlives the backward pass"
    return n_bytes


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_recomputing_keeps_less(design: str, options: dict[str, Any]) -> None:
    everything = kept_bytes(design, options, None)
    assert kept_bytes(design, options, "full") < 0.3 * everything
    assert kept_bytes(design, options, "attention") < everything
