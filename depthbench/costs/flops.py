"""How many floating-point operations do prefill and training take? Products only, in closed form.

A product of (m, k) with (k, n) is 2 m k n. Norms, activations, softmax, RoPE and sums are left out: they are bound by
bytes (`memory.bytes_moved_per_token`), and PyTorch's counter does not see them either.

    forward, T tokens = 2 T L (2 d^2 + 2 d k + 3 d d_ff) + c T^2 L d + T (the design's own) [+ 2 T V d]

`counting` says what attention and the head count for:

    "paper"    c = 2, half of the score matrix as under a causal mask; no head (arXiv 2609.32534, Figure 11)
    "causal"   c = 2, and the head for every token: what training does
    "full"     c = 4, the whole score matrix, and the head: what PyTorch's counter sees

Legend: T seq_len, L n_layers, d d_model, k n_kv_heads * head_dim, V vocab_size.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from depthbench.costs.residual import residual_cost
from depthbench.shapes import Shape

Counting = Literal["paper", "causal", "full"]


def prefill_flops(
    design: str, shape: Shape, seq_len: int = 4096, *, counting: Counting = "paper", **options: Any
) -> int:
    """Floating-point operations of one forward pass over `seq_len` tokens, the design's own among them.

    A server that needs the last token's logits alone runs the head once, not `seq_len` times: "paper" is nearer to
    it. Raises UnknownDesign, and ValueError for an unknown counting or option, or a length below 1.
    """
    return sum(flops_by_part(design, shape, seq_len, counting=counting, **options).values())


def flops_by_part(
    design: str, shape: Shape, seq_len: int = 4096, *, counting: Counting = "paper", **options: Any
) -> dict[str, int]:
    """The same, by part: `projections` (all weight matrices of the blocks), `attention` (scores and values over the
    sequence), `design` (what the residual design adds), `head`."""
    t = _length("seq_len", seq_len)
    if counting not in get_args(Counting):
        raise ValueError(f"unknown counting {counting!r}; allowed: {', '.join(get_args(Counting))}")
    d, layers, k = shape.d_model, shape.n_layers, shape.n_kv_heads * shape.head_dim
    return {
        "projections": 2 * t * layers * (2 * d * d + 2 * d * k + 3 * d * shape.d_ff),
        "attention": (4 if counting == "full" else 2) * t * t * layers * d,
        "design": t * residual_cost(design, shape, **options).product_flops,
        "head": 0 if counting == "paper" else 2 * t * shape.vocab_size * d,
    }


def training_flops(
    design: str,
    shape: Shape,
    n_tokens: int = 1,
    *,
    seq_len: int = 2048,
    counting: Counting = "causal",
    **options: Any,
) -> float:
    """Floating-point operations to train on `n_tokens` tokens in sequences of `seq_len`: three forward passes' worth.

    The gradient of a product is two products of its size, one for each factor. What a backward pass computes again
    (attention scores, activation checkpointing) and the optimiser are not counted. Raises as `prefill_flops`.
    """
    per_sequence = prefill_flops(design, shape, seq_len, counting=counting, **options)
    return 3 * per_sequence / seq_len * _length("n_tokens", n_tokens)


def _length(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}={value} is not a number of tokens; give a whole number from 1 up")
    return int(value)
