"""What the tests of the designs share: one small shape, the options to try, random models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import depthbench as db

from .oracles import randomise

SHAPE = db.Shape(n_layers=3, d_model=24, n_heads=4, n_kv_heads=2, d_ff=40, vocab_size=31)
DESIGNS = db.designs.names(extras=True)

# Options under which the equations are checked, beside the defaults.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "sandwich_ln": [{"embedding_norm": True}],
    "lns": [{"depth_scaled": True}],
    "deepnorm": [{"norm": "rms"}],
    "keel": [{"alpha": 2.5}],
    "hc": [{"n_streams": 1}, {"n_streams": 3}, {"mix_streams": False}, {"norm_eps": 1e-2}],
    "mhc": [
        {"n_streams": 1},
        {"n_streams": 3},
        {"sinkhorn": "reference"},
        {"exit_reduce": "mean"},
        {"norm_eps": 1e-2},
    ],
    "full_attnres": [{"norm_eps": 1e-3}],
    # 6 sublayers: a boundary between attention and feed-forward (3), a short last block (4), one block (6, 9).
    "block_attnres": [*({"block_size_sublayers": size} for size in (2, 3, 4, 6, 9)), {"norm_eps": 1e-3}],
    "moda": [{"rotate_depth_keys": False}, {"ffn_kv": False}, {"rotate_depth_keys": False, "ffn_kv": False}],
    "depth_mup": [{"base_layers": 3}, {"base_layers": 1}],
    "complete_p": [{"base_layers": 3}, {"base_layers": 1}],
}
# Options that act on start values only, and so are no part of the equations.
START_VARIANTS: dict[str, list[dict[str, Any]]] = {
    "hc": [{"output_scaling": "multiply"}, {"output_scaling": "none"}],
    "mhc": [{"output_scaling": "multiply"}, {"output_scaling": "none"}, {"init": "paper"}],
}
CASES = [(name, options) for name in DESIGNS for options in [{}, *VARIANTS.get(name, [])]]


def tokens(batch: int = 2, length: int = 7, seed: int = 0) -> Tensor:
    return torch.randint(0, SHAPE.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def random_model(design: str, shape: db.Shape = SHAPE, **options: Any) -> Any:
    model = db.build_model(design, shape, dtype=torch.float64, **options)
    randomise(model, seed=3)
    return model


def connections(model: Any) -> list[Any]:
    """The connections of all sublayers, j = 0 .. 2L-1."""
    return [part for block in model.blocks.values() for part in (block.attention_residual, block.feed_forward_residual)]


def loss_of(model: Any, ids: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
