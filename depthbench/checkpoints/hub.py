"""Checkpoints of the Hugging Face Hub: the files that opening needs and no others, at one pinned commit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from depthbench.checkpoints.common import CheckpointError
from depthbench.checkpoints.native import WEIGHTS, needed_files

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_id(path: Any) -> bool:
    """Whether a string that is no path here reads as owner/name."""
    return (
        isinstance(path, str)
        and _HUB_ID.fullmatch(path) is not None
        and not path.startswith((".", "~"))
        and not Path(path).parent.exists()
    )


def choose_step(names: Iterable[str], step: int | None, where: str) -> str | None:
    """The folder step<N> of a checkpoint: the one asked for, else the last; None where there are no steps.

    Raises CheckpointError, naming what there is, if the step asked for is not there.
    """
    steps = sorted(int(name[4:]) for name in set(names) if re.fullmatch(r"step\d+", name))
    if step is not None and step not in steps:
        there = ", ".join(map(str, steps)) or "none"
        raise CheckpointError(f"{where} has no step {step}; its steps: {there}")
    return f"step{steps[-1] if step is None else step}" if steps else None


def fetch(hub_id: str, revision: str | None = None, step: int | None = None) -> tuple[Path, str]:
    """Download what opening `hub_id` needs; returns the local folder and the full commit that was read.

    Native repositories: config.json, the tokenizer, the weights' index and the shards that hold weights, of one step
    (default: the last). Others: config.json, the tokenizer, safetensors. With no network, what an earlier call left in
    the Hub's cache is used. Raises CheckpointError in words for an unknown repository, revision or step.
    """
    from huggingface_hub import hf_hub_download

    commit, files = _listing(hub_id, revision)
    where = f"{hub_id} at {commit[:12]}"

    def get(name: str) -> Path:
        try:
            return Path(hf_hub_download(hub_id, name, revision=commit))
        except Exception as error:  # the client raises many kinds
            raise CheckpointError(f"{where}: {name} could not be downloaded: {error}") from None

    root_is_native = f"{WEIGHTS}/.metadata" in files
    steps = [name.split("/")[0] for name in files if name.endswith(f"/{WEIGHTS}/.metadata")]
    chosen = None if root_is_native and step is None else choose_step(steps, step, where)
    prefix = f"{chosen}/" if chosen else ""
    if f"{prefix}config.json" not in files:
        raise CheckpointError(f"{where} has no {prefix}config.json; it holds {', '.join(sorted(files)[:8])}")
    folder = get(f"{prefix}config.json").parent
    for name in sorted(files):
        if name.startswith("tokenizer") or name.startswith(f"{prefix}tokenizer"):
            get(name)
    if f"{prefix}{WEIGHTS}/.metadata" in files:
        index = get(f"{prefix}{WEIGHTS}/.metadata")
        for name in sorted(needed_files(index.parent)):
            get(f"{prefix}{WEIGHTS}/{name}")
        return folder, commit
    weights = [n for n in sorted(files) if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", n)]
    if not weights:
        raise CheckpointError(
            f"{where} has neither {WEIGHTS}/.metadata nor safetensors; pickled weights are not opened"
        )
    for name in weights:
        get(name)
    return folder, commit


def _listing(hub_id: str, revision: str | None) -> tuple[str, set[str]]:
    """The full commit of a revision and the files in it; from the cache where the Hub cannot be reached."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        info = HfApi().model_info(hub_id, revision=revision)
        return str(info.sha), {sibling.rfilename for sibling in info.siblings or []}
    except GatedRepoError:
        raise CheckpointError(f"{hub_id} is gated: accept its terms on its page and log in first") from None
    except RepositoryNotFoundError:
        raise CheckpointError(f"{hub_id} is neither a folder here nor a public repository of the Hub") from None
    except RevisionNotFoundError:
        raise CheckpointError(f"{hub_id} has no revision {revision!r}") from None
    except Exception as error:  # no network, in one of many forms
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    try:
        snapshot = Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
    except Exception:  # not in the cache
        raise CheckpointError(
            f"{hub_id} is no folder here, the Hub cannot be reached ({reason}), and its cache holds no copy"
        ) from None
    return snapshot.name, {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if path.is_file()}
