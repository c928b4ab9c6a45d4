"""Twenty optimiser steps: the plain form of a design and its fast one lose the same, so that rows may be trusted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import depthbench as db

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from anchors import ANCHORED, anchor


def losses(model: nn.Module, batches: torch.Tensor, lr: float = 5e-3) -> torch.Tensor:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    out = []
    for ids in batches:
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        out.append(loss.detach())
    return torch.stack(out)


@pytest.mark.parametrize("design", ANCHORED)
def test_plain_and_fast_lose_the_same_over_twenty_steps(design: str) -> None:
    shape = db.Shape(n_layers=4, d_model=20, n_heads=2, d_ff=48, vocab_size=64)
    generator = torch.Generator().manual_seed(0)
    batches = torch.randint(0, 64, (20, 4, 33), generator=generator) // 2 * 2  # half the ids: something to learn
    fast = db.build_model(design, shape, seed=1)
    plain = anchor(design, shape)
    plain.load_state_dict(fast.state_dict())
    seen, expected = losses(fast, batches), losses(plain, batches)
    assert expected[-1] < expected[0] - 0.3, "nothing was learnt, so nothing was compared"
    torch.testing.assert_close(seen, expected, rtol=0, atol=2e-3)
    torch.testing.assert_close(seen[:5], expected[:5], rtol=0, atol=2e-5)
