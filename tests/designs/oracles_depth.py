"""Oracles of the designs that read along depth: Attention Residuals (2603.15031) and MoDA (2603.15619).

Shape legend and sublayer index: see oracles_backbone. S is the block size of Block AttnRes in sublayers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .oracles_backbone import (
    NORM_EPS,
    DepthSlot,
    ShapeLike,
    Trace,
    Weights,
    attention,
    branch,
    connection,
    embed,
    feed_forward,
    head,
    keys_and_values,
    pre_norm,
    rms,
    rope,
    split_heads,
)


def mix(w: Weights, shape: ShapeLike, prefix: str, sources: list[Tensor], eps: float) -> Tensor:
    """sum_i p_i v_i, p = softmax_i(query . (gain * RMS(v_i))): keys normed, values not, no 1/sqrt(D)."""
    query = w(prefix + "mix.query", shape.d_model)
    gain = w(prefix + "mix.gain", shape.d_model)
    logits = torch.stack([(query * gain * rms(v, eps)).sum(dim=-1) for v in sources])  # (S, B, T)
    weights = torch.softmax(logits, dim=0)
    return torch.stack([weights[i].unsqueeze(-1) * v for i, v in enumerate(sources)]).sum(dim=0)


def full_attnres(w: Weights, shape: ShapeLike, input_ids: Tensor, *, norm_eps: float | None = None) -> Trace:
    """Sublayer j reads a mix of the embedding and of the outputs 0 .. j-1; one last mix, over all, goes to the head.

    Sublayer 0 has one source and no mix parameters: it reads the embedding. There is no residual sum.
    Choice: `norm_eps` is the eps of the key norms alone (the paper names none, so None is the model's 1e-6); the
    pre-norms and the final norm keep 1e-6 (DepthBench's fused kernels run those with 1e-5 too).
    """
    eps = NORM_EPS if norm_eps is None else norm_eps
    sources = [embed(w, shape, input_ids)]
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        h = sources[0] if j == 0 else mix(w, shape, connection(j), sources, eps)
        y = branch(w, shape, j, pre_norm(w, shape, j, h))
        reads.append(h)
        writes.append(y)
        sources.append(y)
    return Trace(head(w, shape, mix(w, shape, "residual_ends.", sources, eps)), reads, writes)


def block_source_sets(n_written: int, block_size: int) -> list[list[int]]:
    """Which outputs are summed in each source, embedding aside, once sublayers 0 .. n_written-1 have written.

    Closed blocks are [0 .. S-1], [S .. 2S-1], ...; what has been written of the open block, if anything, is the last
    source. So the first sublayer of a block (n_written a multiple of S) sees closed blocks only.
    """
    sets = []
    for first in range(0, n_written, block_size):
        sets.append(list(range(first, min(first + block_size, n_written))))
    return sets


def block_attnres(
    w: Weights,
    shape: ShapeLike,
    input_ids: Tensor,
    *,
    block_size_sublayers: int | None = None,
    norm_eps: float | None = None,
) -> Trace:
    """As Full, but the sources are the embedding and the sums of the outputs of each block of S sublayers.

    The embedding is a source of its own and is in no block. The final mix is over all blocks, a short last one
    included. Choice: None is S = max(1, floor(2L / 8)), the paper's eight blocks.
    """
    n_sublayers = 2 * shape.n_layers
    block_size = max(1, n_sublayers // 8) if block_size_sublayers is None else block_size_sublayers
    eps = NORM_EPS if norm_eps is None else norm_eps
    embedding = embed(w, shape, input_ids)
    reads: list[Tensor] = []
    writes: list[Tensor] = []

    def sources() -> list[Tensor]:
        sets = block_source_sets(len(writes), block_size)
        return [embedding] + [torch.stack([writes[i] for i in members]).sum(dim=0) for members in sets]

    for j in range(n_sublayers):
        h = embedding if j == 0 else mix(w, shape, connection(j), sources(), eps)
        y = branch(w, shape, j, pre_norm(w, shape, j, h))
        reads.append(h)
        writes.append(y)
    return Trace(head(w, shape, mix(w, shape, "residual_ends.", sources(), eps)), reads, writes)


def moda(
    w: Weights, shape: ShapeLike, input_ids: Tensor, *, rotate_depth_keys: bool = True, ffn_kv: bool = True
) -> Trace:
    """Pre-LN whose attention also reads keys and values of the same token left by earlier layers, in one softmax.

    Slots of layer l: for every earlier layer its attention's (K, V) and, with `ffn_kv`, kv_proj of its feed-forward's
    normed input (first half keys, second half values). The last layer leaves no slots that anyone reads.
    Choice: depth keys are rotated at the token's own position, like the query, so that the rotations cancel;
    `rotate_depth_keys=False` is the reference code: raw depth keys against the rotated query.
    Choice: kv_proj reads the normed input of the feed-forward (the public paper code is the vision model).
    """
    kv_dim = shape.n_kv_heads * (shape.d_model // shape.n_heads)
    h = embed(w, shape, input_ids)
    slots: list[DepthSlot] = []
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        i = j // 2
        x = pre_norm(w, shape, j, h)
        slot: DepthSlot | None = None
        if j % 2 == 0:
            y = attention(w, shape, i, x, slots)
            slot = keys_and_values(w, shape, i, x)
        else:
            y = feed_forward(w, shape, i, x)
            if ffn_kv and i < shape.n_layers - 1:
                projection = w(connection(j) + "kv_proj.weight", 2 * kv_dim, shape.d_model)
                projected = x @ projection.T
                slot = (
                    split_heads(projected[..., :kv_dim], shape.n_kv_heads),
                    split_heads(projected[..., kv_dim:], shape.n_kv_heads),
                )
        if slot is not None:
            keys, values = slot
            slots.append((rope(keys) if rotate_depth_keys else keys, values))
        reads.append(h)
        writes.append(y)
        h = h + y
    return Trace(head(w, shape, h), reads, writes)
