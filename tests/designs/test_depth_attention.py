"""The joint softmax without a score matrix is the plain one, in values and gradients, heads shared or not."""

from __future__ import annotations

import pytest
import torch

from depthbench.designs import depth_attention, depth_softmax


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("remembered", [True, False])
def test_attend_is_plain(group: int, remembered: bool) -> None:
    generator = torch.Generator().manual_seed(group)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()

    wide = [random(2, 7, 4, 6) for _ in range(4)]
    slots = [(random(2, 7, 4 // group * 6), random(2, 7, 4 // group * 6)) for _ in range(3)]
    leaves = [*wide, *(x for slot in slots for x in slot)]
    kept: list[depth_softmax.Slot] = []
    for slot in slots:
        kept.append(depth_softmax.remember(slot, kept, len(slots)) if remembered else slot)
    results = [depth_softmax.attend(*wide, kept), depth_attention.plain(*wide, slots)]
    grads = [torch.autograd.grad(o.square().sum(), leaves) for o in results]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)
