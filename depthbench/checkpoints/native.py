"""Native OLMo-core step folders, as the paper's checkpoints are published, opened without unpickling foreign code.

    <repository>/step<N>/config.json, model_and_optim/.metadata, model_and_optim/__<rank>_<n>.distcp

The optimiser's state is never read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from depthbench.checkpoints.common import CheckpointError, Opened, Source, fill_model, foreign_spec
from depthbench.checkpoints.keys import Recipe, recipe
from depthbench.checkpoints.metadata import Entry, read_index
from depthbench.checkpoints.native_config import NativeModel, read_model
from depthbench.checkpoints.shards import read_tensor
from depthbench.model import DesignTransformer, model_config

WEIGHTS = "model_and_optim"


def open_native(
    folder: Path,
    config: Mapping[str, Any],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    options: Mapping[str, Any] | None = None,
) -> Opened:
    """The model of a native step folder whose config.json is `config`, and what it says of the recipe.

    `options` are the design's that no config records (an early Hyper-Connections run: mix_streams=False). Memory: the
    model once in `dtype`, and of one tensor at a time the bytes, the values as stored and as cast.
    Raises CheckpointError in words.
    """
    try:
        found = read_model(config)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / 'config.json'}: {error}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'} is malformed: {error}") from None
    chosen = {**found.options, **(options or {})}
    model = _empty(found, chosen, dtype)
    index = {
        name.removeprefix("model."): entry
        for name, entry in read_index(folder / WEIGHTS).items()
        if name.startswith("model.")
    }
    recipes = {name: recipe(name, found.layout) for name in model.state_dict()}
    _check_names(folder, found, recipes, index)
    _check_scales(folder, found, index)

    def read(name: str) -> Tensor:
        made = recipes[name]
        stored = [next(key for key in part if key in index) for part in made.parts]
        return made.join([read_tensor(folder / WEIGHTS, key, index[key]) for key in stored])

    fill_model(model, recipes, read, device=device, dtype=dtype, where=str(folder / WEIGHTS))
    spec = foreign_spec(found.design, found.shape, chosen, read_recipe(config))
    step = folder.name.removeprefix("step")
    number = int(step) if step.isdigit() else None
    return Opened(model, spec, Source("olmo-core", str(folder), step=number, tokenizer=_tokenizer(folder, config)))


def _tokenizer(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The tokenizer's folder beside the weights or the steps, else its name in the config."""
    for beside in (folder / "tokenizer", folder.parent / "tokenizer"):
        if beside.is_dir():
            return str(beside)
    identifier = ((config.get("dataset") or {}).get("tokenizer") or {}).get("identifier")
    if not isinstance(identifier, str):
        return None
    return identifier.rsplit("/", 1)[-1] if identifier.startswith("/") else identifier


def needed_files(weights: Path) -> set[str]:
    """Names of the shards in a `model_and_optim` folder that hold weights, from its index alone."""
    return {
        chunk.file for name, entry in read_index(weights).items() if name.startswith("model.") for chunk in entry.chunks
    }


def read_recipe(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of TrainSpec that a config tells, each where it is there and of the expected kind."""

    def get(*path: str) -> Any:
        value: Any = config
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    optim, loader, duration = ("train_module", "optim"), ("data_loader",), ("trainer", "max_duration")
    scheduler = ("train_module", "scheduler")
    betas, batch = get(*optim, "betas"), get(*loader, "global_batch_size")
    steps = get(*duration, "value") if str(get(*duration, "unit")) == "steps" else None
    known = {
        "lr": get(*optim, "lr"),
        "betas": tuple(betas) if isinstance(betas, list) and len(betas) == 2 else None,
        "adam_eps": get(*optim, "eps"),
        "weight_decay": get(*optim, "weight_decay"),
        "max_grad_norm": get("train_module", "max_grad_norm"),
        "final_lr_fraction": get(*scheduler, "alpha_f"),
        "warmup_fraction": get(*scheduler, "warmup_fraction"),
        "seq_len": get("dataset", "sequence_length"),
        "global_batch_tokens": batch,
        "n_tokens": batch * steps if isinstance(batch, int) and isinstance(steps, int) else None,
        "seed": get("model", "init_seed"),
        "data_seed": get(*loader, "seed"),
        "init_std": get("model", "init_std"),
        "precision": "bf16-pure" if get("model", "dtype") == "bfloat16" else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _empty(found: NativeModel, options: dict[str, Any], dtype: torch.dtype) -> DesignTransformer:
    try:
        config = model_config(found.design, found.shape, dtype=dtype, **options)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    block, head = cast(Any, config.block), cast(Any, config.lm_head)
    block.layer_norm = replace(block.layer_norm, eps=found.eps)  # the two may be one object
    head.layer_norm = replace(head.layer_norm, eps=found.final_eps)
    block.sequence_mixer.rope.theta = found.rope_theta
    model = config.build(init_device="meta")
    cast(Any, model.blocks["0"]).attention_norm.eps = found.first_eps
    return model


def _check_names(folder: Path, found: NativeModel, recipes: Mapping[str, Recipe], index: Mapping[str, Entry]) -> None:
    """Every part must be there, and every tensor must be a part: what is left over is a reading gone wrong."""
    missing = [part[0] for made in recipes.values() for part in made.parts if not any(key in index for key in part)]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CheckpointError(f"{folder} lacks model.{', model.'.join(missing[:3])}{more}, which {found.design} needs")
    known = set().union(*(made.names for made in recipes.values()))
    if found.design == "lns":
        known |= {f"blocks.{layer}.ln_scale" for layer in range(found.shape.n_layers)}
    if extra := sorted(set(index) - known):
        more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
        raise CheckpointError(
            f"{folder} holds model.{', model.'.join(extra[:3])}{more}, for which {found.design} has no use"
        )


def _check_scales(folder: Path, found: NativeModel, index: Mapping[str, Entry]) -> None:
    """Older LNS runs kept their factor as a buffer, which a faulty initialisation could overwrite."""
    for layer in range(found.shape.n_layers):
        if (entry := index.get(f"blocks.{layer}.ln_scale")) is not None:
            stored = float(read_tensor(folder / WEIGHTS, f"blocks.{layer}.ln_scale", entry))
            wanted = (found.shape.n_layers if found.options.get("depth_scaled") else layer + 1) ** -0.5
            if not math.isclose(stored, wanted, rel_tol=1e-2):  # it may be kept in bf16
                raise CheckpointError(
                    f"{folder}: blocks.{layer}.ln_scale is {stored:g} where LNS has 1 / sqrt(l) = {wanted:g}; "
                    "these weights were trained with another factor"
                )
