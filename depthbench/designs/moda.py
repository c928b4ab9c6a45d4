"""MoDA: Pre-LN whose attention also reads what earlier layers left at the same token, in one softmax.

    h_j = h_{j-1} + F_j(g_j * RMS(h_{j-1})),   where attention is, per head and for token t,
    o_t = sum_{s <= t} p_ts v_s + sum_i p_ti v_ti,   p_t = softmax over all s and i of q_t . k / sqrt(E)

with k_ti, v_ti the depth slots of that token: the keys and values of every earlier attention, and a projection
(`kv_proj`: keys, then values) of every earlier feed-forward's normed input. With no slots it is Pre-LN.

MoDA is the exception among the designs: it changes the attention branch itself, which takes keys, values and slots
from the connection (`run`, and `depth_attention.py`).

Legend: B batch, T position, D d_model, K key-value heads, E head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depthbench.designs.base import Card, Connection, Design, Ends, Norm, ShapeLike, Site, compile_parts
from depthbench.designs.depth_softmax import Slot, remember

State = tuple[Tensor, tuple[Slot, ...]]


class MoDAConnection(Connection):
    def read(self, state: State, norm: Norm) -> tuple[Tensor, State]:
        return norm(state[0]), state

    def write(self, carry: State, y: Tensor, norm: Norm) -> State:
        h, slots = carry
        return h + y, slots


class MoDAAttentionConnection(MoDAConnection):
    def __init__(self, site: Site, rotate_depth_keys: bool):
        super().__init__(site)
        self.rotate_depth_keys, self.capacity = rotate_depth_keys, site.n_sublayers

    def run(self, branch: Callable[..., Tensor], u: Tensor, carry: State, **kwargs: Any) -> tuple[Tensor, State]:
        h, slots = carry
        attention: Any = branch
        own = remember((attention.w_k(u), attention.w_v(u)), slots, self.capacity)
        y = branch(u, own=own, slots=slots, rotate_depth_keys=self.rotate_depth_keys, **kwargs)
        return y, (h, (*slots, own))


class MoDAFeedForwardConnection(MoDAConnection):
    def __init__(self, site: Site):
        super().__init__(site)
        self.capacity = site.n_sublayers
        self.kv_proj = nn.Linear(site.d_model, 2 * site.kv_dim, bias=False, device=site.device, dtype=site.dtype)

    def read(self, state: State, norm: Norm) -> tuple[Tensor, State]:
        u, (h, slots) = super().read(state, norm)
        keys, values = self.kv_proj(u).chunk(2, -1)
        return u, (h, (*slots, remember((keys, values), slots, self.capacity)))


class MoDAEnds(Ends):
    def open(self, x: Tensor) -> State:
        return x, ()

    def close(self, state: State) -> Tensor:
        return state[0]


@dataclass(frozen=True, kw_only=True)
class MoDA(Design):
    """MoDA in its Pre-LN form: one softmax over the sequence and over depth."""

    rotate_depth_keys: bool = True
    ffn_kv: bool = True

    card: ClassVar[Card] = Card(
        name="moda",
        label="MoDA (Pre-LN)",
        family="cross-layer",
        equation=(
            r"h_\ell = h_{\ell-1} + F_\ell(\mathrm{LN}(h_{\ell-1});\, K_{<\ell}, V_{<\ell}),\quad"
            r" p_t = \mathrm{softmax}\big(q_t^\top [K_{\le t};\, K_{t,<\ell}] / \sqrt{d_h}\big)"
        ),
        source="MoDA, 2026, equation of the joint softmax over sequence and depth",
        arxiv="2603.15619",
        weight="dynamic",
        published_lr=2e-3,
        notes=(
            "rotate_depth_keys: the slots stand at the token's own position, so rotating query and key is rotating "
            "neither; False is the reference code, which rotates the query alone.",
            "ffn_kv=False leaves out the feed-forward's slots, and with them every parameter the design adds.",
            "kv_proj reads the normed input of the feed-forward; the source's public code is the vision model.",
            "Slots live within one token's forward pass: the cache for decoding does not grow.",
        ),
    )

    def attention(self, stock: Any) -> nn.Module:
        from depthbench.designs.depth_attention import DepthAttention

        return DepthAttention.of(stock)

    def connection(self, site: Site) -> Connection:
        if site.sublayer % 2 == 0:
            return MoDAAttentionConnection(site, self.rotate_depth_keys)
        writes_slots = self.ffn_kv and site.sublayer < site.n_sublayers - 1  # nobody reads the last layer's
        return MoDAFeedForwardConnection(site) if writes_slots else MoDAConnection(site)

    def ends(self, site: Site) -> Ends:
        return MoDAEnds()

    def compile(self, block: Any) -> None:
        attention = getattr(block.attention, "_checkpoint_wrapped_module", block.attention)
        compile_parts(block.attention_norm, attention.rope, block.feed_forward_norm, block.feed_forward)

    def extra_params(self, shape: ShapeLike) -> int:
        kv_dim = shape.n_kv_heads * (shape.d_model // shape.n_heads)
        return (shape.n_layers - 1) * 2 * kv_dim * shape.d_model if self.ffn_kv else 0

    def finish_init(self, block: Any, *, std: float, generator: torch.Generator) -> None:
        from olmo_core.nn.transformer.init import init_linear

        if isinstance(block.feed_forward_residual, MoDAFeedForwardConnection):
            init_linear(block.feed_forward_residual.kv_proj, std=std, generator=generator)  # cut at 3 std
