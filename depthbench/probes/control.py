"""The control of every probe: the same model before its first step.

Many pictures of depth follow from a design's definition, not from what it learned; only the difference is learned.
"""

from __future__ import annotations

from typing import Any

import torch

from depthbench.model import DesignTransformer, build_model


def at_step_0(spec: Any, *, device: str | torch.device = "cpu") -> DesignTransformer:
    """The model of a TrainSpec as its training starts from: same shape, options, seed and initial std; in eval mode."""
    model = build_model(spec.design, spec.shape, seed=spec.seed, device=device, init_std=spec.init_std, **spec.options)
    return model.eval()
