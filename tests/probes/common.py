"""What the tests of the probes share: models of one layer less, or with one layer silenced, made without the probes."""

from __future__ import annotations

import copy
import re
from typing import Any

import torch
from designs.cases import CASES, DESIGNS, SHAPE, connections, random_model, tokens
from torch import Tensor

import depthbench as db

__all__ = ["CASES", "DESIGNS", "SHAPE", "connections", "random_model", "tokens"]

QUIET: dict[str, Any] = {"progress": False}


def zeroed(model: Any, layer: int, *, slots: bool = False) -> Any:
    """A copy whose layer returns nothing; with `slots` its keys and values are nothing too."""
    model = copy.deepcopy(model)
    block = model.blocks[str(layer)]
    weights = [block.attention.w_out, block.feed_forward.w2]
    if slots:
        weights += [block.attention.w_k, block.attention.w_v]
        weights += [block.feed_forward_residual.kv_proj] if hasattr(block.feed_forward_residual, "kv_proj") else []
    with torch.no_grad():
        for weight in weights:
            weight.weight.zero_()
    return model


def without(model: Any, layer: int, **options: Any) -> Any:
    """A model of one layer less, with the weights of the others."""
    smaller = db.build_model(
        model.design.card.name,
        SHAPE.model_copy(update={"n_layers": SHAPE.n_layers - 1}),
        dtype=torch.float64,
        **options,
    )
    state = {}
    for name, value in model.state_dict().items():
        found = re.match(r"blocks\.(\d+)\.(.*)", name)
        if found is None:
            state[name] = value
        elif int(found[1]) != layer:
            state[f"blocks.{int(found[1]) - (int(found[1]) > layer)}.{found[2]}"] = value
    wanted = smaller.state_dict()
    # The last layer of MoDA has no projection for readers that are not there.
    smaller.load_state_dict({name: value for name, value in state.items() if name in wanted})
    return smaller


def exchanged(model: Any, a: int, b: int, parts: str) -> Any:
    """A copy with the weights of two layers exchanged, where both have them; `parts` matches names inside a block."""
    model = copy.deepcopy(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    swapped = dict(state)
    for name in state:
        if (found := re.match(rf"blocks\.{a}\.(.*)", name)) and re.match(parts, found[1]):
            other = f"blocks.{b}.{found[1]}"
            if other in state:
                swapped[name], swapped[other] = state[other], state[name]
    model.load_state_dict(swapped)
    return model


@torch.no_grad()
def window_losses(model: Any, ids: Tensor) -> Tensor:
    nll = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return nll.view(len(ids), -1).mean(1)
