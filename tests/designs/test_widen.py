"""A model widened to float64 turns its heads by its own RoPE, not by the default one."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from olmo_core.nn.rope import PIRoPEScalingConfig

import depthbench as db
from depthbench.model import DesignTransformer, model_config, widen

SHAPE = db.Shape(n_layers=2, d_model=24, n_heads=3, d_ff=32, vocab_size=31)
IDS = torch.randint(0, 31, (2, 33), generator=torch.Generator().manual_seed(0))


def build(theta: float, scaling: Any, dtype: torch.dtype) -> DesignTransformer:
    config = model_config("pre_ln", SHAPE, dtype=dtype, init_std=0.3)
    rope = cast(Any, config.block).sequence_mixer.rope
    rope.theta, rope.scaling = theta, scaling
    model = config.build(init_device="meta")
    model.init_weights(device=torch.device("cpu"))
    return model


@pytest.mark.parametrize("scaling", [None, PIRoPEScalingConfig(factor=4.0)], ids=["", "scaled"])
@pytest.mark.parametrize("theta", [10_000, 50])
def test_widened_model_keeps_its_rope(theta: float, scaling: Any) -> None:
    narrow, wide = build(theta, scaling, torch.float32), widen(build(theta, scaling, torch.float64))
    with torch.no_grad():
        logits = wide(IDS)
        assert logits.dtype == torch.float64
        torch.testing.assert_close(logits, narrow(IDS).double(), rtol=1e-4, atol=1e-5)
        other = widen(build(2 * theta, scaling, torch.float64))(IDS)
    assert (logits - other).abs().max() > 1e-2, "theta is felt at this size, or the comparison says nothing"
