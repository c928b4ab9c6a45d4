"""Closed forms against the built models: PyTorch's FLOP counter, the state that is passed on, what autograd keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import depthbench as db
from depthbench import costs
from tests.costs.common import SHAPES, WITH_OPTIONS, counted, ids_of, name_of

B, T = 2, 12
ATTNRES = ("full_attnres", "block_attnres")


def sources_read(model: Any, ids: Tensor) -> list[int]:
    """How many sources each mixture of an AttnRes model has, seen while it runs."""
    seen: list[int] = []
    hooks = [
        module.register_forward_pre_hook(lambda m, args: seen.append(sum(s is not None for s in args[0])))
        for module in model.modules()
        if type(module).__name__ == "DepthMix"
    ]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return seen


def not_products(design: str, options: dict[str, Any], model: Any, ids: Tensor, shape: db.Shape) -> int:
    """Multiply-adds of the equations that the code makes one element at a time, where no counter sees them.

    The rank-one update b y^T of streams, and the weighted sum of sources.
    """
    if design in ("hc", "mhc"):
        return 2 * ids.numel() * shape.n_sublayers * model.design.n_streams * shape.d_model
    if design in ATTNRES:
        return 2 * ids.numel() * shape.d_model * sum(sources_read(model, ids))
    return 0


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("case", WITH_OPTIONS, ids=name_of)
def test_prefill_is_what_the_counter_sees(case: tuple[str, dict[str, Any]], shape: db.Shape) -> None:
    design, options = case
    model, ids = db.build_model(design, shape, **options), ids_of(shape, B, T)
    with torch.no_grad(), counted() as counter:
        model(ids)
    unseen = not_products(design, options, model, ids, shape)
    assert counter.get_total_flops() + unseen == B * costs.prefill_flops(design, shape, T, counting="full", **options)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    "design", ["pre_ln", "sandwich_ln", "lns", "deepnorm", "keel", "hc", "mhc", "full_attnres", "moda"]
)
def test_training_is_what_the_counter_sees(design: str, shape: db.Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    # Full AttnRes has a sum over reads without a factor d, written as einsum; as a plain sum it counts as no product.
    einsum = torch.einsum
    summed = "nkr,krn->nk"
    monkeypatch.setattr(
        torch,
        "einsum",
        lambda terms, *xs: (xs[0] * xs[1].permute(2, 0, 1)).sum(-1) if terms == summed else einsum(terms, *xs),
    )
    model, ids = db.build_model(design, shape), ids_of(shape, B, T)
    with counted() as counter:
        model(ids).float().logsumexp(-1).mean().backward()
    total = counter.get_total_flops() + unseen_in_training(design, model, ids, shape)
    assert total == costs.training_flops(design, shape, B * T, seq_len=T, counting="full")


def unseen_in_training(design: str, model: Any, ids: Tensor, shape: db.Shape) -> int:
    """Products that the code makes element by element."""
    n_tokens, d = ids.numel(), shape.d_model
    if design in ("hc", "mhc"):  # b y^T of the write, and a dh^T, the gradient of the read
        return 2 * 2 * n_tokens * shape.n_sublayers * model.design.n_streams * d
    if design == "full_attnres":
        tail = sum(s % 8 for s in sources_read(model, ids))  # values behind the last full group of eight
        return 2 * n_tokens * d * tail
    return 0


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("case", WITH_OPTIONS, ids=name_of)
def test_state_is_what_crosses_the_last_layer(case: tuple[str, dict[str, Any]], shape: db.Shape) -> None:
    design, options = case
    model, ids = db.build_model(design, shape, **options), ids_of(shape, B, T)
    with torch.no_grad():
        state = model.residual_ends.open(model.embeddings(ids))
        for block in model.blocks.values():
            state = block(state)
    held = sum(x.numel() * x.itemsize for x in tensors(state))
    assert held == costs.state_bytes(design, shape, T, torch.float32, batch_size=B, **options)


def tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    return [x for part in state if part is not None for x in tensors(part)]


def kept_by_autograd(model: Any, ids: Tensor) -> int:
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no storage is freed and its address used again

    def pack(x: Tensor) -> Tensor:
        if (storage := x.untyped_storage()).data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model(ids)
    return sum(seen.values()) - ids.nbytes  # the embedding keeps the ids


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("case", WITH_OPTIONS, ids=name_of)
def test_activations_are_what_autograd_keeps(case: tuple[str, dict[str, Any]], shape: db.Shape) -> None:
    """Two more sequences cost what the closed form says, to the byte: what does not grow with the batch drops out."""
    design, options = case
    model = db.build_model(design, shape, **options)
    model(ids_of(shape, 1, T))  # RoPE's tables
    few, many = (kept_by_autograd(model, ids_of(shape, batch, T)) for batch in (2, 4))
    assert many - few == costs.activation_bytes(design, shape, T, "float32", batch_size=2, **options)
