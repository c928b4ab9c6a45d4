"""How many bytes does a design hold and move? Closed forms, linear in the tokens.

Legend: B sequences, T seq_len, L n_layers, d d_model, k n_kv_heads * head_dim, J = 2L sublayers.
"""

from __future__ import annotations

from typing import Any, Literal

from depthbench.costs.flops import _length
from depthbench.costs.residual import residual_cost
from depthbench.shapes import Shape

_SIZES = {
    "float64": 8, "fp64": 8, "float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "int8": 1,
    "float8_e4m3fn": 1, "fp8": 1,
}  # fmt: skip


def item_bytes(dtype: Any) -> int:
    """Bytes of one number of a dtype: a torch dtype, or its name ("bfloat16", "bf16"); raises ValueError."""
    size = getattr(dtype, "itemsize", None) or _SIZES.get(str(dtype).removeprefix("torch."))
    if not isinstance(size, int):
        raise ValueError(f"unknown dtype {dtype!r}; give a torch dtype or one of {', '.join(_SIZES)}")
    return size


def kv_cache_bytes(
    design: str, shape: Shape, seq_len: int = 4096, dtype: Any = "bfloat16", *, batch_size: int = 1, **options: Any
) -> int:
    """Bytes of the keys and values that decoding keeps, 2 B T L k: the same for every design.

    Streams, sources and depth slots belong to one token's pass through the layers and are gone after it, so that no
    design adds to it (`state_bytes` has them). Raises UnknownDesign, and ValueError for what makes no sense.
    """
    residual_cost(design, shape, **options)  # only to refuse what is no design
    tokens = _length("batch_size", batch_size) * _length("seq_len", seq_len)
    return 2 * tokens * shape.n_layers * shape.n_kv_heads * shape.head_dim * item_bytes(dtype)


def state_bytes(
    design: str, shape: Shape, seq_len: int = 4096, dtype: Any = "bfloat16", *, batch_size: int = 1, **options: Any
) -> int:
    """Bytes that cross from layer to layer where they are most: the residual tensor, streams, sources or depth slots.

    Pre-LN d a token; HC and mHC N d; Full AttnRes (J + 1) d; Block AttnRes one d a block and the embedding's; MoDA
    d + 2 k (2L - 1). A slot that is one of attention's own keys or values is counted here and in the cache of
    decoding: prefill without a cache holds it for the slots alone.
    """
    tokens = _length("batch_size", batch_size) * _length("seq_len", seq_len)
    return tokens * residual_cost(design, shape, **options).state * item_bytes(dtype)


def activation_bytes(
    design: str,
    shape: Shape,
    seq_len: int = 2048,
    dtype: Any = "float32",
    *,
    batch_size: int = 1,
    logits: bool = False,
    **options: Any,
) -> int:
    """Bytes that autograd keeps for the backward pass, from the embedding to the head's input, without checkpointing.

    A layer keeps the attention's input, queries, keys, values, output and log-sums, 5d + heads (keys and values are
    spread over the query heads, as PyTorch's CPU attention has them), and the feed-forward's input and four tensors of
    width d_ff; the residual path adds its own (`residual.ResidualCost.kept`).
    `logits` adds V a token. Exact for eager float32 as built here, but for what does not grow with the batch; with
    a narrower dtype a lower bound, since norms and coefficients stay in float32; fused or compiled norms keep less.
    """
    tokens = _length("batch_size", batch_size) * _length("seq_len", seq_len)
    d = shape.d_model
    attention, feed_forward = 5 * d + shape.n_heads, d + 4 * shape.d_ff
    per_token = shape.n_layers * (attention + feed_forward) + residual_cost(design, shape, **options).kept
    per_token += d + (shape.vocab_size if logits else 0)
    return tokens * per_token * item_bytes(dtype)


def bytes_moved_per_token(
    design: str,
    shape: Shape,
    dtype: Any = "bfloat16",
    *,
    form: Literal["fused", "by_op"] = "fused",
    **options: Any,
) -> int:
    """Bytes that the residual path reads and writes for one token of a forward pass; branches and weights left out.

    "fused" has one kernel a read and one a write; "by_op" one for every tensor operation of the equations. A GPU that
    moves b bytes a second cannot spend less than this / b on it, whatever the FLOPs say. Raises ValueError for
    another form.
    """
    if form not in ("fused", "by_op"):
        raise ValueError(f"unknown form {form!r}; allowed: fused, by_op")
    cost = residual_cost(design, shape, **options)
    return (cost.moved if form == "fused" else cost.moved_by_op) * item_bytes(dtype)
