"""What every kind of checkpoint shares: its error, where it came from, and a model filled one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from depthbench.shapes import Shape
from depthbench.spec import TrainSpec

if TYPE_CHECKING:
    from depthbench.model import DesignTransformer

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class CheckpointError(ValueError):
    """A path or Hub id that holds no checkpoint this package opens, or a damaged one."""


@dataclass(frozen=True)
class Source:
    """Where weights came from.

    `revision` is the full commit of a Hub repository, `step` an optimiser step, `tokenizer` a folder that holds the
    tokenizer or, where the files hold none, the name that they give it.
    """

    kind: Literal["depthbench", "olmo-core", "hugging-face"]
    path: str
    hub_id: str | None = None
    revision: str | None = None
    step: int | None = None
    tokenizer: str | None = None


class Opened(NamedTuple):
    """A model in eval mode, what is known of how it was trained, and where it came from."""

    model: DesignTransformer
    spec: TrainSpec
    source: Source


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises CheckpointError where there is none."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return content


def plain_name(name: Any, what: str) -> str:
    """A file name without a folder in it, so that an index cannot point outside its own folder."""
    if not isinstance(name, str) or not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError(f"{what} names the file {name!r}; a plain file name of the same folder is expected")
    return name


def foreign_spec(design: str, shape: Shape, options: Mapping[str, Any], known: Mapping[str, Any]) -> TrainSpec:
    """A TrainSpec of what a foreign file says; every field that it does not tell is None, and nothing is guessed."""
    from depthbench import designs

    designs.configure(design, **options)
    unknown = dict.fromkeys(TrainSpec.model_fields)
    return TrainSpec.model_construct(
        **unknown | dict(known) | {"design": design, "shape": shape, "options": {**options}}
    )


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype; raises CheckpointError for one that no model is opened in."""
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype={dtype} is not one of {', '.join(map(str, DTYPES))}")
    return dtype


def fill_model(
    model: DesignTransformer,
    names: Iterable[str],
    read: Callable[[str], Tensor],
    *,
    device: str | torch.device,
    dtype: torch.dtype,
    where: str,
) -> DesignTransformer:
    """Give an empty model its parameters one at a time, cast on the way; in eval mode.

    `read(name)` returns the tensor of a parameter. Memory: the model once in `dtype`, and what `read` holds at a time.
    Raises CheckpointError for a wrong shape and for a tensor with values that are no numbers.
    """
    from depthbench.model import widen

    empty = model.state_dict()
    for name in tqdm(list(names), desc="opening", unit="tensor", disable=None, leave=False):
        tensor = read(name)
        if tensor.shape != empty[name].shape:
            found, wanted = tuple(tensor.shape), tuple(empty[name].shape)
            raise CheckpointError(f"{where}: {name} has shape {found}; its configuration asks for {wanted}")
        tensor = tensor.detach().to(device=device, dtype=dtype)
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{where}: {name} holds values that are no finite numbers in {dtype}")
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, nn.Parameter(tensor))
    if left := [name for name, tensor in model.state_dict().items() if tensor.is_meta]:
        raise CheckpointError(f"{where} lacks {', '.join(left[:3])}{' ...' if len(left) > 3 else ''}")
    return (widen(model) if dtype == torch.float64 else model).eval()
