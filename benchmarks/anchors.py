"""The plain forms that the designs are measured against: what one writes first, from the equations alone.

    anchor("full_attnres", shape)      # the same model, parameters and all, with the plain connection in it

They are here to be measured and nowhere else; the tests hold the designs to oracles of their own.
"""

from __future__ import annotations

from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import depthbench as db
from depthbench.designs.depth_attention import plain


def rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def stock_pre_ln(shape: db.Shape) -> nn.Module:
    """OLMo-core's own Transformer, untouched."""
    from olmo_core.nn.feed_forward import FeedForwardConfig
    from olmo_core.nn.transformer import TransformerConfig

    stock = TransformerConfig.llama_like(
        d_model=shape.d_model,
        vocab_size=shape.vocab_size,
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        rope_theta=10_000,
        layer_norm_eps=1e-6,
        feed_forward=FeedForwardConfig(hidden_size=shape.d_ff, bias=False),
    ).build()
    stock.init_weights(device=torch.device("cpu"))
    return stock


# ---- Attention Residuals: a list of sources, stacked for the keys and again for the values ------------------------


def list_mix(mix: Any, sources: tuple[Any, ...]) -> Tensor:
    present = [source for source in sources if source is not None]
    keys = rms(torch.stack(present), mix.eps)  # (S, B, T, D)
    weights = (keys @ (mix.query * mix.gain)).softmax(0)
    return torch.einsum("sbt,sbtd->btd", weights, torch.stack(present))


def list_write(connection: Any, carry: Any, y: Tensor, norm: Any) -> Any:
    return (*carry, y)


def list_open(ends: Any, x: Tensor) -> Any:
    return (x,)


# ---- Hyper-Connections: outer products over streams, (B, T, N, N, D) ---------------------------------------------


def outer_product_read(connection: Any, state: Tensor, norm: Any) -> Any:
    normed = rms(state, connection.norm_eps)
    alpha = torch.tanh(normed @ connection.dynamic_alpha_proj) * connection.dynamic_alpha_scale
    beta = torch.tanh(normed @ connection.dynamic_beta_proj) * connection.dynamic_beta_scale
    alpha, beta = alpha + connection.static_alpha, beta + connection.static_beta
    read = (alpha[..., 0].unsqueeze(-1) * state).sum(-2)
    kept = (alpha[..., 1:].unsqueeze(-1) * state.unsqueeze(-2)).sum(-3)
    return norm(read), (kept, beta)


def outer_product_write(connection: Any, carry: Any, y: Tensor, norm: Any) -> Tensor:
    kept, beta = carry
    return kept + beta.unsqueeze(-1) * y.unsqueeze(-2)


def loop_sinkhorn(logits: Tensor) -> Tensor:
    m = (logits - logits.amax((-2, -1), keepdim=True)).exp()
    for _ in range(20):
        m = m / m.sum(-2, keepdim=True)
        m = m / m.sum(-1, keepdim=True)
    return m


def manifold_read(connection: Any, state: Tensor, norm: Any) -> Any:
    n = connection.n_streams
    u = rms(state.flatten(-2), connection.norm_eps) @ connection.phi
    pre, post, res = u.split([n, n, n * n], -1)
    bias_pre, bias_post, bias_res = connection.bias.split([n, n, n * n])
    pre = torch.sigmoid(connection.alpha_pre * pre + bias_pre)
    post = 2 * torch.sigmoid(connection.alpha_post * post + bias_post)
    maps = loop_sinkhorn((connection.alpha_res * res + bias_res).unflatten(-1, (n, n)))
    read = (pre.unsqueeze(-1) * state).sum(-2)
    kept = (maps.unsqueeze(-1) * state.unsqueeze(-3)).sum(-2)
    return norm(read), (kept, post)


# ---- MoDA: the whole score matrix, and the slots in one tensor ----------------------------------------------------


def with_full_scores(model: Any, *args: Any, **kwargs: Any) -> Any:
    with patch("depthbench.designs.depth_attention.attend", plain):
        return type(model).forward(model, *args, **kwargs)


def anchor(design: str, shape: db.Shape) -> nn.Module:
    """The plain form of `design`; for 'pre_ln', OLMo-core's stock model."""
    if design == "pre_ln":
        return stock_pre_ln(shape)
    model: Any = db.build_model(design, shape)
    pairs = [(b.attention_residual, b.feed_forward_residual) for b in model.blocks.values()]
    for connection in (c for pair in pairs for c in pair):
        if design == "full_attnres":
            connection.write = MethodType(list_write, connection)
        elif design in ("hc", "mhc"):
            connection.read = MethodType(outer_product_read if design == "hc" else manifold_read, connection)
            connection.write = MethodType(outer_product_write, connection)
    if design in ("full_attnres", "block_attnres"):
        for module in model.modules():
            if type(module).__name__ == "DepthMix":
                module.forward = MethodType(list_mix, module)
        model.residual_ends.open = MethodType(list_open, model.residual_ends)
    if design == "moda":
        model.forward = MethodType(with_full_scores, model)
    return model


ANCHORED = {
    "pre_ln": "OLMo-core's stock block",
    "full_attnres": "list of sources, stacked twice",
    "block_attnres": "list of sources, stacked twice",
    "hc": "outer products",
    "mhc": "outer products",
    "moda": "full score matrix",
}
