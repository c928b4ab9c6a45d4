"""Oracles of the designs with n residual streams: Hyper-Connections (2409.19606) and mHC (2512.24880).

Shape legend: N streams; the rest and the sublayer index: see oracles_backbone. The streams are a Python list of n
tensors (B, T, D), so that every sum over streams is written out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .oracles_backbone import NORM_EPS, ShapeLike, Trace, Weights, branch, connection, embed, head, pre_norm, rms

SINKHORN_ROUNDS = 20
SINKHORN_EPS = 1e-6  # in the 'reference' order only


def total(terms: list[Tensor]) -> Tensor:
    """The sum of a list of equal shapes."""
    return torch.stack(terms).sum(dim=0)


def hc(
    w: Weights,
    shape: ShapeLike,
    input_ids: Tensor,
    *,
    n_streams: int = 4,
    mix_streams: bool = True,
    tanh: bool = True,
    norm_eps: float = 1e-8,
) -> Trace:
    """Dynamic Hyper-Connections, one connector per sublayer.

    For every stream s, with row_s = RMS(H_s) (no gain):
      A[s, :] = static_alpha[s, :] + dynamic_alpha_scale * tanh(row_s . dynamic_alpha_proj)     (n+1 values)
      beta[s] = static_beta[s] + dynamic_beta_scale * tanh(row_s . dynamic_beta_proj)
    read:  h0 = sum_s A[s, 0] H_s;  y = F_j(g_j RMS(h0))
    write: H_k <- sum_s A[s, 1 + k] H_s + beta[k] y
    open: n copies of the embedding; close: the sum of the streams.

    Choice: eps stands inside the root, with the mean of squares (not F.normalize times sqrt(D)).
    Choice: `mix_streams=False` writes to the un-mixed streams, H_k <- H_k + beta[k] y; the read still uses column 0.
    Choice: the close sums first and then applies the final norm (an early reference normed every stream first).
    """
    n, d = n_streams, shape.d_model
    squash = torch.tanh if tanh else (lambda x: x)
    embedding = embed(w, shape, input_ids)
    streams = [embedding for _ in range(n)]
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        static_alpha = w(connection(j) + "static_alpha", n, n + 1)
        static_beta = w(connection(j) + "static_beta", n)
        alpha_proj = w(connection(j) + "dynamic_alpha_proj", d, n + 1)
        alpha_scale = w(connection(j) + "dynamic_alpha_scale", 1)
        beta_proj = w(connection(j) + "dynamic_beta_proj", d)
        beta_scale = w(connection(j) + "dynamic_beta_scale", 1)
        alpha, beta = [], []  # alpha[s]: (B, T, N+1); beta[s]: (B, T)
        for s in range(n):
            row = rms(streams[s], norm_eps)
            alpha.append(static_alpha[s] + alpha_scale * squash(row @ alpha_proj))
            beta.append(static_beta[s] + beta_scale * squash(row @ beta_proj))
        h0 = total([alpha[s][..., 0:1] * streams[s] for s in range(n)])
        y = branch(w, shape, j, pre_norm(w, shape, j, h0))
        reads.append(h0)
        writes.append(y)
        written = []
        for k in range(n):
            if mix_streams:
                kept = total([alpha[s][..., 1 + k : 2 + k] * streams[s] for s in range(n)])
            else:
                kept = streams[k]
            written.append(kept + beta[k].unsqueeze(-1) * y)
        streams = written
    return Trace(head(w, shape, total(streams)), reads, writes)


def sinkhorn_matrix(logits: Tensor, order: str = "paper") -> Tensor:
    """Nearly doubly stochastic matrices from logits (..., out, in): a row belongs to an output stream.

    'paper': exp, then 20 x (divide by column sums, divide by row sums), no eps: rows sum to 1 exactly.
    'reference': row softmax + eps, divide by (column sums + eps), then 19 x (row sums + eps, column sums + eps):
    columns sum to 1 up to eps.
    Choice: a column sum runs over the output index, a row sum over the input index, in both orders.
    """
    if order == "paper":
        m = torch.exp(logits)
        for _ in range(SINKHORN_ROUNDS):
            m = m / m.sum(dim=-2, keepdim=True)
            m = m / m.sum(dim=-1, keepdim=True)
        return m
    if order == "reference":
        m = torch.exp(logits)
        m = m / m.sum(dim=-1, keepdim=True) + SINKHORN_EPS
        m = m / (m.sum(dim=-2, keepdim=True) + SINKHORN_EPS)
        for _ in range(SINKHORN_ROUNDS - 1):
            m = m / (m.sum(dim=-1, keepdim=True) + SINKHORN_EPS)
            m = m / (m.sum(dim=-2, keepdim=True) + SINKHORN_EPS)
        return m
    raise ValueError(f"unknown Sinkhorn order {order!r}")


def mhc(
    w: Weights,
    shape: ShapeLike,
    input_ids: Tensor,
    *,
    n_streams: int = 4,
    sinkhorn: str = "paper",
    exit_reduce: str = "sum",
    norm_eps: float = NORM_EPS,
) -> Trace:
    """Manifold-constrained Hyper-Connections, one connector per sublayer.

    u = RMS(x) phi, x the streams of a token laid end to end (no gain); the columns are [pre n | post n | res n*n].
    read    a = sigmoid(alpha_pre u_pre + bias_pre);      h0 = sum_s a[s] x_s;  y = F_j(g_j RMS(h0))
    write   c = 2 sigmoid(alpha_post u_post + bias_post)
    carry   R = Sinkhorn(alpha_res u_res + bias_res), row-major (out, in)
    state   x_o <- sum_i R[o, i] x_i + c[o] y
    open: n copies of the embedding; close: the sum (or the mean) of the streams.

    Choice: no eps is added to the read weights (DeepSeek V4's code adds one; the paper does not).
    Choice: no 1/sqrt(n) on the branches; where a recipe has it, it is part of the initialisation.
    """
    if exit_reduce not in ("sum", "mean"):
        raise ValueError(f"unknown exit_reduce {exit_reduce!r}")
    n, d = n_streams, shape.d_model
    embedding = embed(w, shape, input_ids)
    streams = [embedding for _ in range(n)]
    reads, writes = [], []
    for j in range(2 * shape.n_layers):
        phi = w(connection(j) + "phi", n * d, 2 * n + n * n)
        bias = w(connection(j) + "bias", 2 * n + n * n)
        alpha_pre = w(connection(j) + "alpha_pre", 1)
        alpha_post = w(connection(j) + "alpha_post", 1)
        alpha_res = w(connection(j) + "alpha_res", 1)
        u = rms(torch.cat(streams, dim=-1), norm_eps) @ phi  # (B, T, 2N + N*N)
        read = torch.sigmoid(alpha_pre * u[..., :n] + bias[:n])
        post = 2 * torch.sigmoid(alpha_post * u[..., n : 2 * n] + bias[n : 2 * n])
        logits = alpha_res * u[..., 2 * n :] + bias[2 * n :]
        rows = [logits[..., o * n : (o + 1) * n] for o in range(n)]
        carry = sinkhorn_matrix(torch.stack(rows, dim=-2), sinkhorn)  # (B, T, out, in)
        h0 = total([read[..., s : s + 1] * streams[s] for s in range(n)])
        y = branch(w, shape, j, pre_norm(w, shape, j, h0))
        reads.append(h0)
        writes.append(y)
        written = []
        for o in range(n):
            kept = total([carry[..., o, i : i + 1] * streams[i] for i in range(n)])
            written.append(kept + post[..., o : o + 1] * y)
        streams = written
    closed = total(streams) if exit_reduce == "sum" else total(streams) / n
    return Trace(head(w, shape, closed), reads, writes)
