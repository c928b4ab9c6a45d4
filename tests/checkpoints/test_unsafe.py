"""Files made to do harm, and damaged ones: refused in words, and nothing in them is run."""

from __future__ import annotations

import io
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import _StorageInfo

import depthbench as db
from depthbench.checkpoints import CheckpointError
from depthbench.checkpoints.metadata import read_index
from depthbench.checkpoints.shards import read_tensor

from .native_writer import config, weights, write_with_olmo_core, write_with_torch


class Trap:
    """Touches a file when unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture
def step(tmp_path: Path) -> Path:
    return write_with_olmo_core(tmp_path / "step7600", weights("pre_ln"), config("pre_ln"))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_trap_in_the_index_is_not_sprung(protocol: int, step: Path, tmp_path: Path) -> None:
    path, sprung = step / "model_and_optim/.metadata", tmp_path / "sprung"
    honest = pickle.loads(path.read_bytes())
    honest.planner_data = Trap(sprung)
    path.write_bytes(pickle.dumps(honest, protocol))
    with pytest.raises(CheckpointError, match=r"refused, nothing in it was run: it asks for"):
        db.load_checkpoint(step)
    assert not sprung.exists()
    pickle.loads(path.read_bytes())
    assert sprung.exists(), "the trap works where it is unpickled"


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "posix.system", "torch.load", "builtins.getattr"])
def test_only_the_known_names_may_stand_in_an_index(name: str, step: Path) -> None:
    module, attribute = name.split(".")
    (step / "model_and_optim/.metadata").write_bytes(f"c{module}\n{attribute}\n(S'true'\ntR.".encode())
    with pytest.raises(CheckpointError, match=f"it asks for {name}"):
        db.load_checkpoint(step)


def test_names_are_not_followed_into_a_module(step: Path) -> None:
    """Protocol 4 could ask for an attribute of an allowed module: torch's 'serialization.os.system'."""
    tricky = b"\x80\x04\x8c\x05torch\x8c\x17serialization.os.system\x93\x8c\x04true\x85R."
    (step / "model_and_optim/.metadata").write_bytes(tricky)
    with pytest.raises(CheckpointError, match=r"it asks for torch\.serialization\.os\.system"):
        db.load_checkpoint(step)


def place_of(step: Path, name: str) -> tuple[Path, int, int]:
    chunk = read_index(step / "model_and_optim")[f"model.{name}"].chunks[0]
    return step / "model_and_optim" / chunk.file, chunk.start, chunk.length


def overwrite(path: Path, start: int, length: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[start : start + length] = content.ljust(length, b"\0")
    path.write_bytes(bytes(whole))


def test_a_trap_in_a_shard_is_not_sprung(step: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    path, start, length = place_of(step, "embeddings.weight")
    saved = io.BytesIO()
    torch.save(Trap(sprung), saved)
    assert len(saved.getvalue()) <= length
    padded = saved.getvalue()
    index = pickle.loads((step / "model_and_optim/.metadata").read_bytes())
    for key, place in index.storage_data.items():
        if key.fqn == "model.embeddings.weight":
            place.length = len(padded)
    (step / "model_and_optim/.metadata").write_bytes(pickle.dumps(index))
    overwrite(path, start, len(padded), padded)
    with pytest.raises(CheckpointError, match=r"refused, nothing in it was run: embeddings\.weight"):
        db.load_checkpoint(step)
    assert not sprung.exists()
    torch.load(io.BytesIO(padded), weights_only=False)
    assert sprung.exists(), "the trap works where it is unpickled"


def test_a_bare_pickle_in_a_shard_is_not_opened(step: Path, tmp_path: Path) -> None:
    overwrite(*place_of(step, "embeddings.weight"), pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(CheckpointError, match="there is no saved tensor"):
        db.load_checkpoint(step)
    assert not (tmp_path / "sprung").exists()


def test_an_index_does_not_point_outside_its_folder(step: Path, tmp_path: Path) -> None:
    path = step / "model_and_optim/.metadata"
    honest = path.read_bytes()
    for outside in ("../secret.distcp", "/etc/hostname", ".."):
        index = pickle.loads(honest)
        for place in index.storage_data.values():
            place.relative_path = outside
        path.write_bytes(pickle.dumps(index))
        with pytest.raises(CheckpointError, match="a plain file name of the same folder is expected"):
            db.load_checkpoint(step)


def test_damaged_files_are_named(step: Path, tmp_path: Path) -> None:
    path, start, length = place_of(step, "embeddings.weight")
    whole = path.read_bytes()
    path.write_bytes(whole[: start + length - 100])
    with pytest.raises(
        CheckpointError, match=rf"{path.name} is cut off: embeddings\.weight should have {length:,} bytes"
    ):
        db.load_checkpoint(step)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path.name} is missing"):
        db.load_checkpoint(step)
    path.write_bytes(whole)
    db.load_checkpoint(step)
    index = step / "model_and_optim/.metadata"
    for content in (index.read_bytes()[:-50], b"", b"garbage"):
        index.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged or no checkpoint index"):
            db.load_checkpoint(step)
    index.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match="no checkpoint index of a known layout"):
        db.load_checkpoint(step)
    index.unlink()
    with pytest.raises(CheckpointError, match=r"has no \.metadata"):
        db.load_checkpoint(step)


def chunked(folder: Path, boxes: list[tuple[tuple[int, int], tuple[int, int]]], size: tuple[int, int]) -> torch.Tensor:
    """A tensor in several chunks, as several ranks leave it, by torch's own classes and torch.save."""
    whole = torch.arange(size[0] * size[1], dtype=torch.float32).view(size)
    storage, chunks = {}, []
    for i, (offsets, sizes) in enumerate(boxes):
        part = whole[offsets[0] : offsets[0] + sizes[0], offsets[1] : offsets[1] + sizes[1]].clone()
        file = folder / f"__{i}_0.distcp"
        torch.save(part, file)
        chunks.append(dcp_metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
        key = dcp_metadata.MetadataIndex("model.w", offsets, i)
        storage[key] = _StorageInfo(file.name, 0, file.stat().st_size)
    properties = dcp_metadata.TensorProperties(dtype=torch.float32)
    entry = dcp_metadata.TensorStorageMetadata(properties, torch.Size(size), chunks)
    content = dcp_metadata.Metadata(state_dict_metadata={"model.w": entry}, storage_data=storage)
    (folder / ".metadata").write_bytes(pickle.dumps(content))
    return whole


def test_chunks_of_several_ranks_are_put_together(tmp_path: Path) -> None:
    whole = chunked(tmp_path, [((3, 0), (2, 4)), ((0, 0), (3, 1)), ((0, 1), (3, 3))], (5, 4))
    assert torch.equal(read_tensor(tmp_path, "w", read_index(tmp_path)["model.w"]), whole)


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 0), (3, 4))],  # a part is missing
        [((0, 0), (3, 4)), ((2, 0), (2, 4))],  # overlapping and short, with the right number of values
        [],
    ],
)
def test_chunks_that_do_not_make_up_the_tensor(boxes: Any, tmp_path: Path) -> None:
    chunked(tmp_path, boxes, (5, 4))
    with pytest.raises(CheckpointError, match="do not make up"):
        read_tensor(tmp_path, "w", read_index(tmp_path)["model.w"])


def test_the_optimiser_is_never_read(tmp_path: Path) -> None:
    """Files that hold no weights may be absent: a download leaves them out."""
    tensors = weights("pre_ln")
    step = write_with_torch(tmp_path / "step0", tensors, config("pre_ln"))
    index = pickle.loads((step / "model_and_optim/.metadata").read_bytes())
    for key, place in index.storage_data.items():
        if key.fqn.startswith("optim."):
            place.relative_path = "__9_9.distcp"
    (step / "model_and_optim/.metadata").write_bytes(pickle.dumps(index))
    model, _ = db.load_checkpoint(step)
    assert torch.equal(model.embeddings.weight, tensors["embeddings.weight"].float())
    shutil.rmtree(step)
