"""Tensors of a torch distributed checkpoint, one at a time, by torch's loader of plain weights."""

from __future__ import annotations

import io
import math
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from depthbench.checkpoints.common import CheckpointError
from depthbench.checkpoints.metadata import Chunk, Entry

ZIP_MAGIC = b"PK\x03\x04"


def read_tensor(folder: Path, name: str, entry: Entry) -> Tensor:
    """The whole tensor of `entry`, from its chunks; raises CheckpointError for missing, damaged or unsafe bytes."""
    covered = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
    if covered != math.prod(entry.size) or any(_overlap(a, b) for a, b in combinations(entry.chunks, 2)):
        raise CheckpointError(f"{folder}: the chunks of {name} do not make up its {entry.size}")
    if len(entry.chunks) == 1:
        return _read_chunk(folder, name, entry.chunks[0])
    whole: Tensor | None = None
    for chunk in entry.chunks:
        part = _read_chunk(folder, name, chunk)
        whole = torch.empty(entry.size, dtype=part.dtype) if whole is None else whole
        box = tuple(slice(offset, offset + size) for offset, size in zip(chunk.offsets, chunk.sizes, strict=True))
        if whole[box].shape != part.shape:
            raise CheckpointError(f"{folder}: a chunk of {name} at {chunk.offsets} reaches beyond its {entry.size}")
        whole[box].copy_(part)
    if whole is None:
        raise CheckpointError(f"{folder}: {name} has no chunks")
    return whole


def _read_chunk(folder: Path, name: str, chunk: Chunk) -> Tensor:
    path = folder / chunk.file
    try:
        with open(path, "rb") as file:
            file.seek(chunk.start)
            content = file.read(chunk.length)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; {name} lies in it") from None
    if len(content) < chunk.length:
        raise CheckpointError(
            f"{path} is cut off: {name} should have {chunk.length:,} bytes from byte {chunk.start:,}, "
            f"there are {len(content):,}"
        )
    if not content.startswith(ZIP_MAGIC):
        raise CheckpointError(f"{path} is refused: where {name} should be there is no saved tensor")
    try:
        tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds, for damage and for what it will not unpickle
        raise CheckpointError(
            f"{path} is refused, nothing in it was run: {name} cannot be read as plain weights "
            f"({str(error).strip().splitlines()[0]})"
        ) from None
    if not isinstance(tensor, Tensor) or tuple(tensor.shape) != chunk.sizes:
        found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise CheckpointError(f"{path}: {name} is {found}; its index says {chunk.sizes}")
    return tensor


def _overlap(a: Chunk, b: Chunk) -> bool:
    return all(x < y + t and y < x + s for x, s, y, t in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True))
