"""Checkpoints: write ours, and open ours, the published native ones and Hugging Face models; no pickle is ever run."""

from depthbench.checkpoints.common import CheckpointError, Opened, Source
from depthbench.checkpoints.opening import load_checkpoint, open_checkpoint
from depthbench.checkpoints.ours import save_final

__all__ = ["CheckpointError", "Opened", "Source", "load_checkpoint", "open_checkpoint", "save_final"]
