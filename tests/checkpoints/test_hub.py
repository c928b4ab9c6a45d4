"""The Hub: the files that opening needs and no others, at a pinned commit; a stand-in serves a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import RepositoryNotFoundError

import depthbench as db
from depthbench.checkpoints import CheckpointError, open_checkpoint
from depthbench.checkpoints.hub import is_hub_id

from .native_writer import config, weights, write_with_olmo_core

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB_ID = "aspect-ratio-scaling/preln-lr2e-3-llama-400M-L24-pretrain"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Serves tmp_path/remote as every repository and collects the names of the files that were asked for."""
    remote, cache, names = tmp_path / "remote", tmp_path / "cache", list[str]()

    def model_info(self: Any, hub_id: str, revision: str | None = None) -> Any:
        assert hub_id == HUB_ID and revision in (None, "main", COMMIT)
        files = [path for path in sorted(remote.rglob("*")) if path.is_file()]
        return SimpleNamespace(
            sha=COMMIT, siblings=[SimpleNamespace(rfilename=str(path.relative_to(remote))) for path in files]
        )

    def download(hub_id: str, name: str, revision: str) -> str:
        assert revision == COMMIT, "every file comes from the one commit"
        names.append(name)
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(remote / name, cache / name)
        return str(cache / name)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return names


def publish(root: Path, *steps: int) -> None:
    for step in steps:
        folder = write_with_olmo_core(root / f"step{step}", weights("pre_ln", seed=step), config("pre_ln"))
        (folder / "train").mkdir()
        (folder / "train/rank0.pt").write_bytes(b"trainer state")
    (root / "tokenizer").mkdir()
    (root / "tokenizer/tokenizer.json").write_text("{}")


def test_only_what_is_needed_of_the_last_step(asked: list[str], tmp_path: Path) -> None:
    publish(tmp_path / "remote", 0, 7600)
    opened = open_checkpoint(HUB_ID)
    assert torch.equal(opened.model.embeddings.weight, weights("pre_ln", seed=7600)["embeddings.weight"].float())
    assert (opened.source.hub_id, opened.source.revision, opened.source.step) == (HUB_ID, COMMIT, 7600)
    assert opened.source.tokenizer is not None and (Path(opened.source.tokenizer) / "tokenizer.json").exists()
    assert {"step7600/config.json", "step7600/model_and_optim/.metadata", "tokenizer/tokenizer.json"} <= set(asked)
    assert not [name for name in asked if name.startswith("step0") or "/train/" in name]


def test_shards_of_the_optimiser_stay_where_they_are(asked: list[str], tmp_path: Path) -> None:
    import pickle

    publish(tmp_path / "remote", 7600)
    index = tmp_path / "remote/step7600/model_and_optim/.metadata"
    content = pickle.loads(index.read_bytes())
    for key, place in content.storage_data.items():
        if key.fqn.startswith("optim."):
            place.relative_path = "__7_0.distcp"
    index.write_bytes(pickle.dumps(content))
    (index.parent / "__7_0.distcp").write_bytes(b"moments")
    open_checkpoint(HUB_ID)
    assert "step7600/model_and_optim/__7_0.distcp" not in asked
    assert [name for name in asked if name.endswith(".distcp")]


def test_a_step_asked_for_and_one_at_the_root(asked: list[str], tmp_path: Path) -> None:
    publish(tmp_path / "remote", 0, 3000)
    assert open_checkpoint(HUB_ID, step=0, revision="main").source.step == 0
    with pytest.raises(CheckpointError, match="has no step 7; its steps: 0, 3000"):
        open_checkpoint(HUB_ID, step=7)
    write_with_olmo_core(tmp_path / "final", weights("pre_ln", seed=5), config("pre_ln"))
    shutil.copytree(tmp_path / "final", tmp_path / "remote", dirs_exist_ok=True)
    opened = open_checkpoint(HUB_ID)
    assert opened.source.step is None and opened.source.revision == COMMIT
    assert torch.equal(opened.model.embeddings.weight, weights("pre_ln", seed=5)["embeddings.weight"].float())


def test_what_is_not_there_is_said(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote/pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(CheckpointError, match=r"has no config\.json; it holds pytorch_model\.bin"):
        db.load_checkpoint(HUB_ID)
    (tmp_path / "remote/config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="pickled weights are not opened"):
        db.load_checkpoint(HUB_ID)

    def unknown(*args: Any, **kwargs: Any) -> Any:
        response = SimpleNamespace(headers={}, request=None, status_code=404)
        raise RepositoryNotFoundError("404", response=response)  # type: ignore[arg-type]

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unknown)
    with pytest.raises(CheckpointError, match="neither a folder here nor a public repository"):
        db.load_checkpoint(HUB_ID)


def test_without_a_network_the_cache_serves(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("no route")

    def no_copy(*args: Any, **kwargs: Any) -> str:
        raise FileNotFoundError

    publish(tmp_path / "remote", 7600)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", offline)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_copy)
    with pytest.raises(CheckpointError, match=r"cannot be reached \(no route\), and its cache holds no copy"):
        db.load_checkpoint(HUB_ID)
    snapshot = tmp_path / COMMIT
    (tmp_path / "remote").rename(snapshot)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(snapshot))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda hub_id, name, revision: str(snapshot / name))
    assert open_checkpoint(HUB_ID).source.revision == COMMIT


def test_what_reads_as_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert is_hub_id(HUB_ID)
    for path in ("runs/missing", "./a", "/a/b", "a", "a/b/c", "~/a", tmp_path / "a/b", "../a"):
        assert not is_hub_id(path), path
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        db.load_checkpoint("runs/missing")
