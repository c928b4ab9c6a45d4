"""What each branch returned in the model's own forward pass: a quick look while training, and a witness for `Walk`.

The tap listens at the branches themselves, not at block outputs, so that it means the same in every design: with one
residual tensor, with streams, or with sources. `Walk.moments` gives what was read and remembered as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn


@contextmanager
def branch_outputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect y_j (B, T, D) of every sublayer j of each forward pass made inside the context, in the order they ran."""
    collected: list[Tensor] = []
    blocks: Any = model.blocks
    handles = [
        branch.register_forward_hook(lambda module, inputs, output: collected.append(output.detach()))
        for block in blocks.values()
        for branch in (block.attention, block.feed_forward)
    ]
    try:
        yield collected
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def branch_rms(model: nn.Module, input_ids: Tensor) -> pd.DataFrame:
    """Root mean square over tokens and width of what each layer's attention and feed-forward return.

    rms_j = sqrt(mean_{b,t,d} y_j^2). Shapes: input_ids (B, T). One row a layer (0-based), columns `attention` and
    `feed_forward`.
    """
    with branch_outputs(model) as outputs:
        model(input_ids)
    values = [float(y.float().pow(2).mean().sqrt()) for y in outputs]
    frame = pd.DataFrame({"attention": values[0::2], "feed_forward": values[1::2]})
    frame.index.name = "layer"
    return frame
