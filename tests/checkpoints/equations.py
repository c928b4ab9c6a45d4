"""What a published checkpoint computes, in float64: the designs' oracles, fed with the published tensors.

Where the reference's code parts from the designs (eps of Attention Residuals, the residual map of the torch backend of
mHC, which is the other way round) the equations stand here, over the published names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from designs.oracles import oracle
from designs.oracles_backbone import ShapeLike, Weights, branch, branch_name, embed, head, pre_norm, rms
from designs.oracles_depth import block_source_sets
from torch import Tensor

ATTNRES_EPS = 1e-5


def published_logits(kind: str, tensors: Mapping[str, Tensor], shape: ShapeLike, ids: Tensor, **options: Any) -> Tensor:
    """Logits (B, T, V) in float64 of tensors under their published names."""
    if kind == "mhc_torch":
        return checked(tensors, lambda w: torch_mhc(w, shape, ids))
    if kind in ("full_attnres", "block_attnres"):
        size = 1 if kind == "full_attnres" else 3
        return checked(tensors, lambda w: attnres(w, shape, ids, size))
    design, defaults = kind, dict[str, Any]()
    if kind == "mhc_liger":
        design, defaults = "mhc", {"sinkhorn": "reference", "exit_reduce": "mean"}
    if kind == "moda":
        defaults = {"rotate_depth_keys": False}
    return oracle(design, renamed(kind, tensors), shape, {**defaults, **options}, ids)


def checked(tensors: Mapping[str, Tensor], logits: Any) -> Tensor:
    w = Weights(tensors)
    result = logits(w)
    assert not w.unread, f"the equations never use {sorted(w.unread)}"
    return result


def renamed(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published names and layouts -> those the designs' oracles ask for."""
    renames = {
        "sandwich_ln": {".post_attention_norm.": ".attention_residual.post_norm."},
        "hc": {"_hyper_connection.": "_residual."},
        "mhc_liger": {"_hyper_connection.": "_residual."},
        "moda": {
            ".attention.attention.": ".attention.",
            ".feed_forward.feed_forward.": ".feed_forward.",
            ".feed_forward.kv_proj.": ".feed_forward_residual.kv_proj.",
        },
    }
    renames["sandwich_ln"][".post_feed_forward_norm."] = ".feed_forward_residual.post_norm."
    renames["keel"] = renames["sandwich_ln"]
    state = {}
    for name, tensor in tensors.items():
        new = name
        for old, by in renames.get(kind, {}).items():
            new = new.replace(old, by)
        if new.endswith("_residual.b"):
            new = new[:-1] + "bias"
        state[new] = tensor.reshape(1) if tensor.ndim == 0 else tensor
    return state


def attnres(w: Weights, shape: ShapeLike, ids: Tensor, block_size: int) -> Tensor:
    """Attention Residuals with eps 1e-5 in every norm, of keys and of inputs, but the very first."""
    d = shape.d_model

    def mixed(prefix: str, sources: list[Tensor]) -> Tensor:
        query = w(prefix + "res_proj.weight", 1, d)[0]
        gain = w(prefix + "res_norm.weight", d)
        scores = torch.stack([(rms(v, ATTNRES_EPS) * gain * query).sum(-1) for v in sources])
        return (scores.softmax(0).unsqueeze(-1) * torch.stack(sources)).sum(0)

    embedding = embed(w, shape, ids)
    outputs: list[Tensor] = []

    def sources() -> list[Tensor]:
        sets = block_source_sets(len(outputs), block_size)
        return [embedding, *(torch.stack([outputs[i] for i in members]).sum(0) for members in sets)]

    for j in range(2 * shape.n_layers):
        gain = w(f"blocks.{j // 2}.{branch_name(j)}_norm.weight", d)
        if j == 0:
            x = rms(embedding) * gain
        else:
            x = rms(mixed(f"blocks.{j // 2}.{('attn', 'mlp')[j % 2]}_", sources()), ATTNRES_EPS) * gain
        outputs.append(branch(w, shape, j, x))
    final = rms(mixed("", sources()), ATTNRES_EPS) * w("lm_head.norm.weight", d)
    return final @ w("lm_head.w_out.weight", shape.vocab_size, d).T


def torch_mhc(w: Weights, shape: ShapeLike, ids: Tensor, n: int = 4) -> Tensor:
    """mHC of the torch backend: rows before columns, out_t = sum_s R[s, t] x_s, eps 1e-8, the sum at the end."""
    d = shape.d_model
    embedding = embed(w, shape, ids)
    streams = [embedding] * n
    for j in range(2 * shape.n_layers):
        at = f"blocks.{j // 2}.{branch_name(j)}_hyper_connection."
        flat = rms(torch.cat(streams, -1), 1e-8)

        def logits(name: str, width: int, bias: Tensor, at: str = at, flat: Tensor = flat) -> Tensor:
            gate, phi = w(f"{at}{name}_gate"), w(f"{at}{name}_dynamic_proj", n * d, width)
            return gate * (flat @ phi) + bias.reshape(width)

        read = torch.sigmoid(logits("pre", n, w(at + "pre_bias", n)))
        post = 2 * torch.sigmoid(logits("post", n, w(at + "post_bias", n)))
        m = logits("residual", n * n, w(at + "residual_bias", n, n)).unflatten(-1, (n, n)).exp()
        for _ in range(20):
            m = m / m.sum(-1, keepdim=True)
            m = m / m.sum(-2, keepdim=True)
        h = sum((read[..., s : s + 1] * streams[s] for s in range(n)), torch.zeros_like(embedding))
        y = branch(w, shape, j, pre_norm(w, shape, j, h))
        streams = [
            sum((m[..., s, t : t + 1] * streams[s] for s in range(n)), post[..., t : t + 1] * y) for t in range(n)
        ]
    return head(w, shape, torch.stack(streams).sum(0))
