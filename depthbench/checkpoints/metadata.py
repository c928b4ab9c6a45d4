"""The index of a torch distributed checkpoint, read without running what is pickled in it.

`.metadata` is a pickle. Only the names below may stand in it, and each is replaced by an inert record of ours, so that
no class of the file's choosing is made and no function called. They are what OLMo-core 2.5 to 3.0 and torch's own
writer put there; anything else is refused.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from depthbench.checkpoints.common import CheckpointError, plain_name


class _Record:
    """Holds what a pickle would have set on an object, and does nothing."""

    def __init__(self, *args: Any) -> None:
        self.args, self.state = args, None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __getitem__(self, name: str) -> Any:
        if not isinstance(self.state, dict) or name not in self.state:
            raise KeyError(name)
        return self.state[name]

    def get(self, name: str) -> Any:
        return self.state.get(name) if isinstance(self.state, dict) else None  # defaults of a class are not pickled


class Metadata(_Record):
    """The whole index."""


class TensorEntry(_Record):
    """A tensor's size and chunks."""


class BytesEntry(_Record):
    """A value that is no tensor: of an optimiser, never read."""


class ChunkEntry(_Record):
    """Where a chunk lies in its tensor."""


class IndexEntry(_Record):
    """Name and offset of a chunk."""


class PlaceEntry(_Record):
    """File, offset and length of a chunk."""


class OtherEntry(_Record):
    """What is of no use here."""


def _size(values: Any = ()) -> tuple[int, ...]:
    return tuple(values)


_TORCH = "torch.distributed.checkpoint"
ALLOWED: dict[tuple[str, str], Any] = {
    (f"{_TORCH}.metadata", "Metadata"): Metadata,
    (f"{_TORCH}.metadata", "TensorStorageMetadata"): TensorEntry,
    (f"{_TORCH}.metadata", "BytesStorageMetadata"): BytesEntry,
    (f"{_TORCH}.metadata", "ChunkStorageMetadata"): ChunkEntry,
    (f"{_TORCH}.metadata", "MetadataIndex"): IndexEntry,
    (f"{_TORCH}.metadata", "TensorProperties"): OtherEntry,
    (f"{_TORCH}.metadata", "_MEM_FORMAT_ENCODING"): OtherEntry,
    (f"{_TORCH}.metadata", "StorageMeta"): OtherEntry,
    (f"{_TORCH}.filesystem", "_StorageInfo"): PlaceEntry,
    ("olmo_core.distributed.checkpoint.filesystem", "_StorageInfo"): PlaceEntry,
    ("torch.serialization", "_get_layout"): OtherEntry,
    ("torch", "Size"): _size,
    ("pathlib", "PosixPath"): OtherEntry,
    ("pathlib._local", "PosixPath"): OtherEntry,  # as Python 3.13 writes it
}
_DTYPES = {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        if module == "torch" and name in _DTYPES:
            return getattr(torch, name)
        raise CheckpointError(f"it asks for {module}.{name}, which no checkpoint index needs")

    def persistent_load(self, pid: Any) -> Any:
        raise CheckpointError("it asks for a persistent object, which no checkpoint index needs")


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor and where its bytes are: `length` bytes of `file` from `start`."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class Entry:
    """A tensor's size and the chunks that make it up."""

    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def read_index(folder: Path) -> dict[str, Entry]:
    """The tensors of a `model_and_optim` folder by name; raises CheckpointError if foreign, unsafe or damaged."""
    path = folder / ".metadata"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no .metadata, so it is no torch distributed checkpoint") from None
    try:
        metadata = _Unpickler(io.BytesIO(content)).load()
    except CheckpointError as error:
        raise CheckpointError(f"{path} is refused, nothing in it was run: {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise CheckpointError(f"{path} is damaged or no checkpoint index: {error}") from None
    try:
        return _entries(metadata)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise CheckpointError(f"{path}: {error}") from None
        raise CheckpointError(f"{path} is no checkpoint index of a known layout: {error!r}") from None


def _entries(metadata: Metadata) -> dict[str, Entry]:
    if not isinstance(metadata, Metadata):
        raise TypeError(f"a {type(metadata).__name__} stands where the index should be")
    places: dict[tuple[str, tuple[int, ...]], PlaceEntry] = {}
    for index, place in metadata["storage_data"].items():
        if (offset := index.get("offset")) is not None:
            places[str(index["fqn"]), _numbers(offset)] = place
    entries = {}
    for name, tensor in metadata["state_dict_metadata"].items():
        if not isinstance(tensor, TensorEntry):
            continue
        chunks = []
        for chunk in tensor["chunks"]:
            offsets = _numbers(chunk["offsets"])
            if (name, offsets) not in places:
                raise CheckpointError(f"{name} has a chunk at {offsets} that lies in no file")
            place = places[name, offsets]
            if place.get("transform_descriptors"):
                raise CheckpointError(f"{name} is stored compressed or encrypted, which is not supported")
            file = plain_name(place["relative_path"], name)
            start, length = _numbers((place["offset"], place["length"]))
            chunks.append(Chunk(offsets, _numbers(chunk["sizes"]), file, start, length))
        entries[str(name)] = Entry(_numbers(tensor["size"]), tuple(chunks))
    return entries


def _numbers(values: Any) -> tuple[int, ...]:
    numbers = tuple(values)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"{numbers} are no sizes or offsets")
    return numbers
