"""Save and open trained models as safetensors beside their specification: nothing is unpickled.

OLMo-core's own checkpoints are pickles and serve only to resume a run in its own folder.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from depthbench.model import DesignTransformer, build_model
from depthbench.spec import TrainSpec

FORMAT = "depthbench-1"


class CheckpointError(ValueError):
    """A folder that is not a checkpoint of ours, or a damaged one."""


def save_final(model: Any, spec: TrainSpec, path: Path) -> str:
    """Write `model.safetensors` and `config.json` under `path`; returns the sha256 of the weights file.

    The same weights give the same bytes.
    """
    path.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(model.state_dict().items())}
    part = path / "model.safetensors.part"
    save_file(tensors, part, metadata={"format": FORMAT})
    digest = hashlib.sha256(part.read_bytes()).hexdigest()
    config = {"format": FORMAT, "weights_sha256": digest, "spec": spec.model_dump(mode="json")}
    (path / "config.json").write_text(json.dumps(config, indent=1))
    part.replace(path / "model.safetensors")
    return digest


def load_checkpoint(path: str | Path, *, device: str | torch.device = "cpu") -> tuple[DesignTransformer, TrainSpec]:
    """The model and the specification of a run folder or of its `final` folder, in eval mode.

    Raises CheckpointError in words for a missing, foreign or damaged one.
    """
    folder = Path(path)
    folder = folder / "final" if (folder / "final").is_dir() else folder
    config_path, weights_path = folder / "config.json", folder / "model.safetensors"
    for needed in (config_path, weights_path):
        if not needed.exists():
            raise CheckpointError(
                f"{folder} has no {needed.name}; give a run folder that is complete, or its 'final' folder"
            )
    try:
        config = json.loads(config_path.read_text())
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{config_path} is not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise CheckpointError(
            f"{config_path} is not of format {FORMAT!r}; only checkpoints written by depthbench are opened"
        )
    digest = hashlib.sha256(weights_path.read_bytes()).hexdigest()
    if digest != config["weights_sha256"]:
        raise CheckpointError(
            f"{weights_path} is damaged: its sha256 is {digest[:12]}..., written was {config['weights_sha256'][:12]}..."
        )
    spec = TrainSpec.model_validate(config["spec"])
    try:
        tensors = load_file(weights_path, device=str(device))
    except SafetensorError as error:
        raise CheckpointError(f"{weights_path} cannot be read: {error}") from None
    dtype = tensors["embeddings.weight"].dtype
    model = build_model(spec.design, spec.shape, seed=spec.seed, device=device, dtype=dtype, **spec.options)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if missing or unexpected:
        raise CheckpointError(
            f"{weights_path} does not fit {spec.design}: missing {missing[:3]}, unexpected {unexpected[:3]}"
        )
    return model.eval(), spec
