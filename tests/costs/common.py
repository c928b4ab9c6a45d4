"""Shapes and designs with options, shared by the tests of costs; and PyTorch's counter, told of two more operations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

import depthbench as db

aten: Any = torch.ops.aten

SHAPES = {
    "mha": db.Shape(n_layers=5, d_model=24, n_heads=3, d_ff=40, vocab_size=31),
    "gqa": db.Shape(n_layers=3, d_model=32, n_heads=4, n_kv_heads=2, d_ff=24, vocab_size=50),
}
WITH_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in db.designs.names(extras=True)),
    ("sandwich_ln", {"embedding_norm": True}),
    ("deepnorm", {"norm": "rms"}),
    ("hc", {"n_streams": 2}),
    ("hc", {"mix_streams": False}),
    ("mhc", {"n_streams": 3}),
    ("mhc", {"sinkhorn": "reference"}),
    ("block_attnres", {"block_size_sublayers": 1}),
    ("block_attnres", {"block_size_sublayers": 3}),
    ("block_attnres", {"block_size_sublayers": 4}),
    ("moda", {"ffn_kv": False}),
    ("moda", {"rotate_depth_keys": False}),
]


def name_of(case: Any) -> str:
    """A test id."""
    if isinstance(case, tuple):
        design, options = case
        return "-".join([design, *(f"{key}={value}" for key, value in options.items())])
    return str(case)


def ids_of(shape: db.Shape, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, shape.vocab_size, (batch, length), generator=torch.Generator().manual_seed(0))


@contextmanager
def counted() -> Iterator[FlopCounterMode]:
    """FlopCounterMode that also sees matrix-vector products, products in place and the CPU's flash attention.

    The backward pass of the latter is counted as its four products; the scores that it makes again are left out.
    """

    def matrix_vector(matrix: Any, vector: Any, **kwargs: Any) -> int:
        return 2 * matrix[0] * matrix[1]

    def attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        batch, heads, length, width = q
        return 4 * batch * heads * length * k[2] * width

    def attention_backward(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        return 2 * attention(q, k, v)

    def matrix_matrix(total: Any, a: Any, b: Any, **kwargs: Any) -> int:
        return 2 * math.prod(a) * b[-1]

    mapping = {
        aten.mv: matrix_vector,
        aten.addmm_: matrix_matrix,
        aten.baddbmm_: matrix_matrix,
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        yield counter
