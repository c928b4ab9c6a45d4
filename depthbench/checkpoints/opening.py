"""Open a checkpoint, whoever wrote it: ours, a native OLMo-core step, a Hugging Face model; a folder or a Hub id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from depthbench.checkpoints.common import CheckpointError, Opened, check_dtype, read_json
from depthbench.checkpoints.hub import choose_step, fetch, is_hub_id
from depthbench.checkpoints.native import WEIGHTS, open_native
from depthbench.checkpoints.ours import FORMAT, open_ours
from depthbench.model import DesignTransformer
from depthbench.spec import TrainSpec


def load_checkpoint(
    path: str | Path,
    revision: str | None = None,
    step: int | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    **options: Any,
) -> tuple[DesignTransformer, TrainSpec]:
    """The model, in eval mode, and the specification of a checkpoint; see `open_checkpoint`."""
    opened = open_checkpoint(path, revision, step, device=device, dtype=dtype, **options)
    return opened.model, opened.spec


def open_checkpoint(
    path: str | Path,
    revision: str | None = None,
    step: int | None = None,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Opened:
    """The model, its specification and its source, of a folder or of a Hub id such as 'owner/name'.

    A folder is a run of ours or its `final`; a native OLMo-core step, or the folder of its steps (the last, or `step`);
    or a Llama-like Hugging Face model in safetensors. A Hub id is downloaded at `revision` (default: main), and the
    commit that was read stands in `source.revision`. `dtype`: None keeps ours as stored and opens others in float32.
    `options` are a design's that a native config does not record, such as mix_streams=False. In the specification of a
    foreign checkpoint the fields that its files do not tell are None.
    No pickle of a file's making is run. Raises CheckpointError in words.
    """
    if dtype is not None:
        check_dtype(dtype)
    if is_hub_id(path) and not Path(path).exists():
        folder, commit = fetch(str(path), revision, step)
        opened = _open_folder(folder, device, dtype, options)
        return opened._replace(source=replace(opened.source, hub_id=str(path), revision=commit))
    if revision is not None:
        raise CheckpointError(f"{path} is a folder here, which has no revision {revision!r}; leave it out")
    folder = Path(path).expanduser()
    if (folder / "final").is_dir():
        if step is not None:
            raise CheckpointError(f"{folder} is a complete run of ours, which keeps its last step only; leave step out")
        folder = folder / "final"
    elif (step is not None or not (folder / "config.json").exists()) and (chosen := _step_folder(folder, step)):
        folder = folder / chosen
    return _open_folder(folder, device, dtype, options)


def _step_folder(folder: Path, step: int | None) -> str | None:
    steps = [found.parent.name for found in folder.glob(f"step*/{WEIGHTS}")]
    if steps and (folder / "spec.json").exists():
        raise CheckpointError(
            f"{folder} is a run of ours that is not complete: its steps serve to resume it; run it to its end"
        )
    return choose_step(steps, step, str(folder))


def _open_folder(
    folder: Path, device: str | torch.device, dtype: torch.dtype | None, options: dict[str, Any]
) -> Opened:
    if not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder} has no config.json; give a run folder that is complete or its 'final' folder, a native step "
            "folder or the folder of its steps, a Hugging Face model, or a Hub id as owner/name"
        )
    config = read_json(folder / "config.json")
    foreign = dtype or torch.float32
    if config.get("format") == FORMAT:
        _no_options(options, "a checkpoint of ours")
        return open_ours(folder, config, device=device, dtype=dtype)
    if isinstance(config.get("model"), dict) and "block" in config["model"]:
        return open_native(folder, config, device=device, dtype=foreign, options=options)
    if "model_type" in config:
        from depthbench.checkpoints.huggingface import open_huggingface

        _no_options(options, "a Hugging Face model")
        return open_huggingface(folder, config, device=device, dtype=foreign)
    raise CheckpointError(
        f"{folder / 'config.json'} is of no known kind: neither of format {FORMAT!r}, nor a native OLMo-core config "
        "(model.block), nor a Hugging Face one (model_type)"
    )


def _no_options(options: dict[str, Any], what: str) -> None:
    if options:
        raise CheckpointError(f"{what} records its options; {', '.join(options)} cannot be given")
