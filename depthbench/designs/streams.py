"""Three products on the streams of a token, each one small matrix product, with backward passes of as many.

    project   z = r (H W),  r = rsqrt(mean(H^2) + eps)      the RMS divided out after the product: no normed copy of H
    read      h = a^T H
    write     H' = M H + b y^T                              no product of shape N x N x D, nothing kept but the factors

`project` and `read` also return H, for the next of the three to use: so its gradient passes from one to the other and
is added to, where three separate gradients of its size would have to be made and summed.

Legend: B batch, T position, N streams, D d_model, K columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depthbench.designs.base import no_autocast


def project(x: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """z (..., K) in w's type, and x again; x (..., D), w (D, K) in at least float32."""
    return _Project.apply(x, w, eps)


def read(streams: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """h (B, T, D) and the streams (B, T, N, D) again; a (B, T, N)."""
    return _Read.apply(streams, a)


def write(streams: Tensor, maps: Tensor | None, y: Tensor, b: Tensor) -> Tensor:
    """H' (B, T, N, D); maps (B, T, N to, N from), or None where streams are not mixed; y (B, T, D), b (B, T, N)."""
    return _Write.apply(streams, maps, y, b)


def flat(x: Tensor) -> Tensor:
    """(B, T, ...) -> (B * T, ...)."""
    return x.flatten(0, -3)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        with no_autocast(x):
            wide = x.to(w.dtype)
            r = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
            r = torch.rsqrt(r.square_().div_(x.shape[-1]).add_(eps))  # (..., 1)
            z = (wide @ w).mul_(r)
        ctx.save_for_backward(x, w, r, z)
        return z, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dz: Tensor, dx: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w, r, z = ctx.saved_tensors
        with no_autocast(x):
            wide = x.to(w.dtype).reshape(-1, x.shape[-1])
            scaled = (dz * r).reshape(-1, dz.shape[-1])
            dw = wide.t() @ scaled
            through_r = ((dz * z).sum(-1, keepdim=True) * r * r).reshape(-1, 1) / -x.shape[-1]
            total = torch.addmm(dx.reshape(wide.shape).to(w.dtype), scaled, w.t())
            total.addcmul_(through_r, wide)
        return total.view(x.shape).to(x.dtype), dw, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(streams, a)
        with no_autocast(streams):
            h = (a.unsqueeze(-2) @ streams).squeeze(-2)
        return h, streams.view_as(streams)

    @staticmethod
    def backward(ctx: Any, dh: Tensor, dstreams: Tensor) -> tuple[Tensor, Tensor]:
        streams, a = ctx.saved_tensors
        with no_autocast(streams):
            da = (streams @ dh.unsqueeze(-1)).squeeze(-1)
            total = torch.addcmul(dstreams, a.unsqueeze(-1), dh.unsqueeze(-2))
        return total, da


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, maps: Tensor | None, y: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(streams, maps, y, b)
        with no_autocast(streams):
            kept = streams if maps is None else maps @ streams
            if maps is None:
                return torch.addcmul(kept, b.unsqueeze(-1), y.unsqueeze(-2))
            return kept.addcmul_(b.unsqueeze(-1), y.unsqueeze(-2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        streams, maps, y, b = ctx.saved_tensors
        with no_autocast(streams):
            dy = (b.unsqueeze(-2) @ grad).squeeze(-2)
            db = (grad @ y.unsqueeze(-1)).squeeze(-1)
            if maps is None:
                return grad, None, dy, db
            return maps.transpose(-1, -2) @ grad, grad @ streams.transpose(-1, -2), dy, db
