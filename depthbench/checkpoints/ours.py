"""Our own checkpoints: safetensors beside the specification, so that nothing is unpickled.

OLMo-core's own checkpoints of a run of ours are pickles and serve only to resume it in its own folder.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from depthbench.checkpoints.common import CheckpointError, Opened, Source
from depthbench.model import build_model
from depthbench.spec import TrainSpec

FORMAT = "depthbench-1"


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


def open_ours(
    folder: Path, config: dict[str, Any], *, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> Opened:
    """The model and the specification that `save_final` wrote in `folder`, whose config.json is `config`.

    `dtype`: None keeps the stored one. Raises CheckpointError in words for a damaged checkpoint.
    """
    weights_path = folder / "model.safetensors"
    if not weights_path.exists():
        raise CheckpointError(
            f"{folder} has no {weights_path.name}; give a run folder that is complete, or its 'final' folder"
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
    stored = tensors["embeddings.weight"].dtype
    model = build_model(spec.design, spec.shape, seed=spec.seed, device=device, dtype=dtype or stored, **spec.options)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if missing or unexpected:
        raise CheckpointError(
            f"{weights_path} does not fit {spec.design}: missing {missing[:3]}, unexpected {unexpected[:3]}"
        )
    return Opened(model.eval(), spec, Source("depthbench", str(folder)))
