"""Oracles of the single-stream designs, in which only norms and fixed factors differ.

Pre-LN; Sandwich-LN (CogView 2105.13290, Peri-LN 2502.02732); LayerNorm Scaling (2502.05795); DeepNorm (2203.00555);
KEEL (2601.19895). Shape legend and sublayer index: see oracles_backbone.
"""

from __future__ import annotations

import math

from torch import Tensor

from .oracles_backbone import (
    ShapeLike,
    Trace,
    Weights,
    block_norm_gain,
    branch,
    connection,
    embed,
    head,
    layer_norm,
    pre_norm,
    rms,
)


def pre_ln(w: Weights, shape: ShapeLike, input_ids: Tensor) -> Trace:
    """h <- h + F_j(g_j RMS(h))."""
    h = embed(w, shape, input_ids)
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        y = branch(w, shape, j, pre_norm(w, shape, j, h))
        reads.append(h)
        writes.append(y)
        h = h + y
    return Trace(head(w, shape, h), reads, writes)


def scaled_branch(w: Weights, shape: ShapeLike, input_ids: Tensor, *, exponent: float, base_layers: int = 24) -> Trace:
    """h <- h + (L / base_layers)^-exponent F_j(g_j RMS(h)): Depth-muP (1/2, 2310.02244), CompleteP (1, 2505.01618)."""
    h = embed(w, shape, input_ids)
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        y = branch(w, shape, j, pre_norm(w, shape, j, h))
        reads.append(h)
        writes.append(y)
        h = h + y / (shape.n_layers / base_layers) ** exponent
    return Trace(head(w, shape, h), reads, writes)


def sandwich_ln(w: Weights, shape: ShapeLike, input_ids: Tensor, *, embedding_norm: bool = False) -> Trace:
    """h <- h + g'_j RMS(F_j(g_j RMS(h))); with `embedding_norm` the embedding is normed once, before sublayer 0."""
    h = embed(w, shape, input_ids)
    if embedding_norm:
        h = rms(h) * w("residual_ends.embedding_norm.weight", shape.d_model)
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        y = branch(w, shape, j, pre_norm(w, shape, j, h))
        reads.append(h)
        writes.append(y)
        h = h + rms(y) * w(connection(j) + "post_norm.weight", shape.d_model)
    return Trace(head(w, shape, h), reads, writes)


def lns(w: Weights, shape: ShapeLike, input_ids: Tensor, *, depth_scaled: bool = False) -> Trace:
    """h <- h + F_j(g_j RMS(h) / sqrt(l)), l the 1-based layer of both its sublayers; `depth_scaled`: l = L everywhere.

    The final norm is not scaled.
    """
    h = embed(w, shape, input_ids)
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        layer = shape.n_layers if depth_scaled else j // 2 + 1
        y = branch(w, shape, j, pre_norm(w, shape, j, h) / math.sqrt(layer))
        reads.append(h)
        writes.append(y)
        h = h + y
    return Trace(head(w, shape, h), reads, writes)


def deepnorm_alpha(n_layers: int) -> float:
    """(2L)^(1/4), the decoder-only value."""
    return (2 * n_layers) ** 0.25


def deepnorm(w: Weights, shape: ShapeLike, input_ids: Tensor, *, norm: str = "layer") -> Trace:
    """h <- LN_j(alpha h + F_j(h)), alpha = (2L)^(1/4); the block's own norm is the post-norm, there is no pre-norm.

    Choice: 'layer' subtracts the mean (the paper's LayerNorm, here without bias); 'rms' does not. The final norm is the
    backbone's RMSNorm in both cases, although the last state is already normed.
    """
    normalise = {"layer": layer_norm, "rms": rms}[norm]
    h = embed(w, shape, input_ids)
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        y = branch(w, shape, j, h)
        reads.append(h)
        writes.append(y)
        h = normalise(deepnorm_alpha(shape.n_layers) * h + y) * block_norm_gain(w, shape, j)
    return Trace(head(w, shape, h), reads, writes)


def keel(w: Weights, shape: ShapeLike, input_ids: Tensor, *, alpha: float | None = None) -> Trace:
    """h <- LN_j(alpha h + F_j(LN(h))), alpha = 2L, both norms RMSNorm with gain.

    Exceptions: sublayer 0 is plain Pre-LN (no post-norm, no alpha); sublayer 1 has alpha = 1 but keeps its post-norm.
    Choice: a given `alpha` replaces 2L; it does not reach the two exceptional sublayers.
    """
    highway = 2.0 * shape.n_layers if alpha is None else alpha
    h = embed(w, shape, input_ids)
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        y = branch(w, shape, j, pre_norm(w, shape, j, h))
        reads.append(h)
        writes.append(y)
        if j == 0:
            h = h + y
        elif j == 1:
            h = rms(h + y) * w(connection(j) + "post_norm.weight", shape.d_model)
        else:
            h = rms(highway * h + y) * w(connection(j) + "post_norm.weight", shape.d_model)
    return Trace(head(w, shape, h), reads, writes)
