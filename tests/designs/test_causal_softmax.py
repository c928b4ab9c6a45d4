"""Attention that gives its log-sum, and its backward pass in a softmax with more terms, against the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from depthbench.designs import causal_softmax

SCALE = 0.3


def tensors(n: int, dtype: torch.dtype, device: str = "cpu", width: int = 6) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(2, 3, 9, width, dtype=dtype, device=device) for _ in range(n))


def written_out(q: Tensor, k: Tensor, v: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
    """o over the causal keys of a softmax that has one term `extra` (B, H, T) more, and the log-sum of all terms."""
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) * SCALE).masked_fill(future, -torch.inf)
    scores = torch.cat([scores, extra.unsqueeze(-1)], -1)
    return scores.softmax(-1)[..., :-1] @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("kind", ["cpu", "plain"])
def test_a_softmax_with_more_terms(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The joint o here holds the sequence's part alone: a value of zero goes with the extra term."""
    monkeypatch.setattr(causal_softmax, "_kind", lambda q: kind)
    q, k, v, do = tensors(4, torch.float64)
    extra = torch.randn(2, 3, 9, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    expected, joint = written_out(q, k, v, extra)
    grads = torch.autograd.grad(expected, leaves, do)

    with torch.no_grad():
        o, log_sum, saved = causal_softmax.forward((q, k, v), SCALE)
        together = o * (log_sum - joint).exp().unsqueeze(-1)
        torch.testing.assert_close(together, expected, rtol=1e-12, atol=1e-12)
        got = causal_softmax.backward((do, q, k, v, together), joint, SCALE, saved)
    for own, wanted in zip(got, grads, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_cuda_operations_take_our_arguments(dtype: torch.dtype) -> None:
    """Shapes and types alone, on tensors without values: no device is needed, and no number is tested."""
    with FakeTensorMode():
        q, k, v, do = (torch.empty(2, 3, 9, 38, dtype=dtype, device="cuda") for _ in range(4))
        o, log_sum, saved = causal_softmax.forward((q, k, v), SCALE)
        assert o.shape == q.shape and o.dtype == dtype
        assert log_sum.shape == q.shape[:3] and log_sum.dtype == torch.float32
        joint = torch.empty(2, 3, 9, dtype=torch.float32, device="cuda")
        grads = causal_softmax.backward((do, q, k, v, o), joint, SCALE, saved)
        assert [(x.shape, x.dtype) for x in grads] == [(q.shape, dtype)] * 3
