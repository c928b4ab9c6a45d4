"""Checkpoints: the same model comes back, and what is damaged, foreign or missing is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import depthbench as db
from depthbench.checkpoints import CheckpointError, save_final

SHAPE = db.Shape(n_layers=2, d_model=16, n_heads=2, d_ff=32, vocab_size=29)


def saved(folder: Path, design: str) -> tuple[torch.nn.Module, db.TrainSpec]:
    spec = db.TrainSpec(design=design, shape=SHAPE, lr=1e-3, seq_len=8, global_batch_tokens=16, n_tokens=16)
    model = db.build_model(design, SHAPE, seed=7)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    save_final(model, spec, folder / "final")
    return model, spec


@pytest.mark.parametrize("design", db.designs.names())
def test_the_same_model_comes_back(design: str, tmp_path: Path) -> None:
    model, spec = saved(tmp_path, design)
    ids = torch.randint(0, SHAPE.vocab_size, (2, 8))
    for path in (tmp_path, tmp_path / "final"):
        opened, found = db.load_checkpoint(path)
        assert found == spec and not opened.training
        assert torch.equal(opened(ids), model(ids))
    assert db.checkpoints.open_checkpoint(tmp_path).source.kind == "depthbench"
    with pytest.raises(CheckpointError, match="leave step out"):
        db.load_checkpoint(tmp_path, step=3)
    with pytest.raises(CheckpointError, match="records its options"):
        db.load_checkpoint(tmp_path, n_streams=4)


def test_the_same_weights_give_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        torch.manual_seed(0)
        saved(tmp_path / name, "hc")
    files = [(tmp_path / name / "final/model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]


def test_damaged_foreign_and_missing(tmp_path: Path) -> None:
    saved(tmp_path, "pre_ln")
    weights, config = tmp_path / "final/model.safetensors", tmp_path / "final/config.json"
    whole, written = weights.read_bytes(), config.read_text()
    weights.write_bytes(whole[:-8])
    with pytest.raises(CheckpointError, match="damaged"):
        db.load_checkpoint(tmp_path)
    weights.write_bytes(whole)
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(CheckpointError, match="of no known kind"):
        db.load_checkpoint(tmp_path)
    config.write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        db.load_checkpoint(tmp_path)
    other = json.loads(written)
    other["spec"]["design"] = "hc"
    config.write_text(json.dumps(other))
    with pytest.raises(CheckpointError, match="does not fit hc: missing"):
        db.load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        db.load_checkpoint(tmp_path / "nothing")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    """A file that would run code if unpickled, under the name of the weights, runs nothing."""
    import hashlib
    import pickle

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))  # type: ignore[return-value]

    saved(tmp_path, "pre_ln")
    weights, config = tmp_path / "final/model.safetensors", tmp_path / "final/config.json"
    weights.write_bytes(pickle.dumps(Trap()))
    content = json.loads(config.read_text())
    content["weights_sha256"] = hashlib.sha256(weights.read_bytes()).hexdigest()
    config.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="cannot be read"):
        db.load_checkpoint(tmp_path)
    assert not (tmp_path / "sprung").exists()
