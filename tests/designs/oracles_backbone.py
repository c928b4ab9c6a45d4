"""The shared backbone of the oracles: naive float64 loops, written from the equations alone.

Backbone: LLaMA-like. Attention with rotary positions (GPT-NeoX halves) and grouped queries, SwiGLU, RMSNorm.
Shape legend: B batch, T position, D d_model, H query heads, K key-value heads, E head_dim, V vocabulary.
Sublayer j = 0 .. 2L-1 (1-based in the papers): even j is the attention of block j // 2, odd j its feed-forward.
Nothing here runs in place or under no_grad, so a gradient can be taken through an oracle as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

ROPE_THETA = 10_000.0
NORM_EPS = 1e-6

DepthSlot = tuple[Tensor, Tensor]  # keys and values of an earlier sublayer, (B, T, K, E) each


class ShapeLike(Protocol):
    """What an oracle needs to know of a model's shape."""

    @property
    def n_layers(self) -> int: ...
    @property
    def d_model(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def d_ff(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


class Trace(NamedTuple):
    """logits (B, T, V); reads[j], branch input before its pre-norm, and writes[j], bare branch output, (B, T, D)."""

    logits: Tensor
    reads: list[Tensor]
    writes: list[Tensor]


class Weights:
    """A state dict in float64 that checks every shape asked for and remembers what nobody asked for."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state
        self.unread = set(state)

    def __call__(self, name: str, *shape: int) -> Tensor:
        if name not in self._state:
            raise KeyError(f"the oracle expects a parameter {name!r} of shape {shape}; there is none")
        value = self._state[name]
        if tuple(value.shape) != shape:
            raise ValueError(f"{name}: the oracle expects the shape {shape}, found {tuple(value.shape)}")
        self.unread.discard(name)
        return value.to(torch.float64)


# ---- names ------------------------------------------------------------------------------------------------------


def branch_name(j: int) -> str:
    """'attention' or 'feed_forward'."""
    return "attention" if j % 2 == 0 else "feed_forward"


def connection(j: int) -> str:
    """The prefix of the connection parameters of sublayer j."""
    return f"blocks.{j // 2}.{branch_name(j)}_residual."


def block_norm_gain(w: Weights, shape: ShapeLike, j: int) -> Tensor:
    """The gain of the backbone's own norm of sublayer j: (D,)."""
    return w(f"blocks.{j // 2}.{branch_name(j)}_norm.weight", shape.d_model)


# ---- pieces -----------------------------------------------------------------------------------------------------


def rms(x: Tensor, eps: float = NORM_EPS) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last axis, without gain."""
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + eps)


def layer_norm(x: Tensor, eps: float = NORM_EPS) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the last axis, biased variance, without gain or bias."""
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(dim=-1, keepdim=True) + eps)


def embed(w: Weights, shape: ShapeLike, input_ids: Tensor) -> Tensor:
    """(B, T) -> (B, T, D)."""
    return w("embeddings.weight", shape.vocab_size, shape.d_model)[input_ids]


def head(w: Weights, shape: ShapeLike, h: Tensor) -> Tensor:
    """Final RMSNorm and projection: (B, T, D) -> (B, T, V)."""
    normed = rms(h) * w("lm_head.norm.weight", shape.d_model)
    return normed @ w("lm_head.w_out.weight", shape.vocab_size, shape.d_model).T


def rope(x: Tensor) -> Tensor:
    """Rotate every head of every token by its position: (B, T, heads, E), angle_k = t * theta^(-2k / E)."""
    half = x.shape[-1] // 2
    exponents = torch.arange(half, dtype=torch.float64, device=x.device) * 2 / x.shape[-1]
    frequencies = ROPE_THETA**-exponents
    tokens = []
    for t in range(x.shape[1]):
        cos = torch.cos(t * frequencies).repeat(2)
        sin = torch.sin(t * frequencies).repeat(2)
        x1, x2 = x[:, t, :, :half], x[:, t, :, half:]
        tokens.append(x[:, t] * cos + torch.cat([-x2, x1], dim=-1) * sin)
    return torch.stack(tokens, dim=1)


def pre_norm(w: Weights, shape: ShapeLike, j: int, h: Tensor) -> Tensor:
    """g_j * RMS(h)."""
    return rms(h) * block_norm_gain(w, shape, j)


def split_heads(x: Tensor, n: int) -> Tensor:
    """(B, T, n * E) -> (B, T, n, E), heads outermost in the flat axis."""
    return x.reshape(*x.shape[:2], n, x.shape[-1] // n)


def keys_and_values(w: Weights, shape: ShapeLike, i: int, x: Tensor) -> DepthSlot:
    """The attention of block i projects its normed input x: un-rotated keys and values."""
    kv_dim = shape.n_kv_heads * (shape.d_model // shape.n_heads)
    keys = x @ w(f"blocks.{i}.attention.w_k.weight", kv_dim, shape.d_model).T
    values = x @ w(f"blocks.{i}.attention.w_v.weight", kv_dim, shape.d_model).T
    return split_heads(keys, shape.n_kv_heads), split_heads(values, shape.n_kv_heads)


def attention(w: Weights, shape: ShapeLike, i: int, x: Tensor, depth_slots: Sequence[DepthSlot] = ()) -> Tensor:
    """Causal attention of block i on its normed input x; depth slots of the same token join the one softmax.

    o_t = sum_s p_ts v_s over s <= t and the depth slots of token t, p = softmax(q_t . k_s / sqrt(E)).
    The keys in `depth_slots` are used as they are: the caller has rotated them, or not.
    """
    d, n_heads = shape.d_model, shape.n_heads
    head_dim = d // n_heads
    queries = rope(split_heads(x @ w(f"blocks.{i}.attention.w_q.weight", n_heads * head_dim, d).T, n_heads))
    raw_keys, values = keys_and_values(w, shape, i, x)
    keys = rope(raw_keys)
    rows = []
    for b in range(x.shape[0]):
        tokens = []
        for t in range(x.shape[1]):
            heads = []
            for h in range(n_heads):
                kv = h // (n_heads // shape.n_kv_heads)
                seen = [(keys[b, s, kv], values[b, s, kv]) for s in range(t + 1)]
                seen += [(slot_keys[b, t, kv], slot_values[b, t, kv]) for slot_keys, slot_values in depth_slots]
                logits = torch.stack([torch.dot(queries[b, t, h], key) / math.sqrt(head_dim) for key, _ in seen])
                weights = torch.softmax(logits, dim=0)
                heads.append(torch.stack([weights[s] * value for s, (_, value) in enumerate(seen)]).sum(dim=0))
            tokens.append(torch.cat(heads))  # (H * E,)
        rows.append(torch.stack(tokens))
    return torch.stack(rows) @ w(f"blocks.{i}.attention.w_out.weight", d, n_heads * head_dim).T


def feed_forward(w: Weights, shape: ShapeLike, i: int, x: Tensor) -> Tensor:
    """SwiGLU of block i on its normed input: w2(silu(w1 x) * w3 x)."""
    d, d_ff = shape.d_model, shape.d_ff
    gate = x @ w(f"blocks.{i}.feed_forward.w1.weight", d_ff, d).T
    up = x @ w(f"blocks.{i}.feed_forward.w3.weight", d_ff, d).T
    return (gate * torch.sigmoid(gate) * up) @ w(f"blocks.{i}.feed_forward.w2.weight", d, d_ff).T


def branch(w: Weights, shape: ShapeLike, j: int, x: Tensor) -> Tensor:
    """F_j on its (normed) input."""
    if j % 2 == 0:
        return attention(w, shape, j // 2, x)
    return feed_forward(w, shape, j // 2, x)
