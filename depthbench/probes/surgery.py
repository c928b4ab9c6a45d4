"""A model with one layer left out or two layers swapped, for as long as a `with` block lasts.

with skipped(model, layer=7):
    score = arc_easy(model)          # any function of a model
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from depthbench.probes.views import walk
from depthbench.probes.walk import Skip, Swap, check_choice


@contextmanager
def skipped(model: nn.Module, layer: int, skip: Skip = "silent") -> Iterator[nn.Module]:
    """The model with a layer (0-based) left out of its forward pass; see `walk` for the two readings.

    Raises ValueError for a layer that is not there or an unknown reading.
    """
    check_choice("skip", skip, Skip)
    path = walk(model)
    check_layer(layer, path.n_layers)
    inner: Any = model

    def forward(input_ids: Tensor, *, labels: Tensor | None = None, **kwargs: Any) -> Any:
        input_ids, labels, block_kwargs, per_block, head_kwargs = inner._prepare_inputs(input_ids, labels, **kwargs)
        if block_kwargs or any(per_block.values()):
            raise NotImplementedError(f"a model with a layer left out does not take {', '.join(block_kwargs)}")
        if labels is not None:
            head_kwargs["labels"] = labels
        state = path.skip(layer, path.run(path.open(input_ids), stop=layer), skip)
        return inner.lm_head(path.close(path.run(state, start=layer + 1)), **head_kwargs)

    if "forward" in vars(model):
        raise RuntimeError("this model has a layer left out already; leave that `with` block first")
    inner.forward = forward
    try:
        yield model
    finally:
        del inner.forward


@contextmanager
def swapped(model: nn.Module, a: int, b: int, swap: Swap = "branches") -> Iterator[nn.Module]:
    """The model with layers a and b (0-based) exchanged; see `Walk.exchanges` for what travels.

    Raises ValueError for a layer that is not there or an unknown reading.
    """
    check_choice("swap", swap, Swap)
    path = walk(model)
    for layer in (a, b):
        check_layer(layer, path.n_layers)
    pairs = path.exchanges(a, b, swap) if a != b else []
    _exchange(pairs)
    try:
        yield model
    finally:
        _exchange(pairs[::-1])


def _exchange(pairs: list[tuple[Any, str, Any, str]]) -> None:
    for one, name, other, other_name in pairs:
        mine, theirs = getattr(one, name), getattr(other, other_name)
        setattr(one, name, theirs)
        setattr(other, other_name, mine)


def check_layer(layer: int, n_layers: int) -> None:
    """Raise ValueError for a layer that is not there."""
    if not 0 <= layer < n_layers:
        raise ValueError(f"layer {layer} is not there: this model has layers 0 to {n_layers - 1}")
