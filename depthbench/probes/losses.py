"""Next-token loss of every window, from any state: what permutation and pruning compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from depthbench.designs.base import at_least_fp32
from depthbench.probes.walk import Walk


def check_length(ids: Tensor) -> None:
    """Raise ValueError for windows of one token: there is nothing to predict."""
    if ids.shape[1] < 2:
        raise ValueError("windows of one token predict nothing; give at least two tokens each")


def window_loss(path: Walk, state: Any, ids: Tensor) -> np.ndarray:
    """Mean cross-entropy in nats of ids[:, 1:] given the final state: (B,)."""
    logits = at_least_fp32(path.logits(path.close(state)[:, :-1]))
    nll = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return nll.view(len(ids), -1).double().mean(1).cpu().numpy()
