"""The run record: one line a run, append-only, and the frame that figures and prose read.

Two files have the same form. `results/runs.jsonl` is committed: the book's evidence. `build/results/runs.jsonl` is what
this machine ran. `load_runs` joins them; where both hold a run, the local one is shown and the committed one can still
be asked for.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, ValidationError

from depthbench.paths import LOCAL_RESULTS, RESULTS

SCHEMA = 1
COMMITTED_RUNS = RESULTS / "runs.jsonl"
LOCAL_RUNS = LOCAL_RESULTS / "runs.jsonl"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Params(_Strict):
    """Exact parameter counts: total = backbone + embedding + design + final norm."""

    total: int
    backbone: int
    embedding: int
    design: int


class DataRef(_Strict):
    """What the run read: enough to tell whether two runs saw the same tokens."""

    name: str
    revision: str
    train_sha256: str
    val_sha256: str
    n_train_tokens: int


class ValLoss(_Strict):
    """Mean cross-entropy on the held-out split in nats per token, its standard error over documents, and the tokens
    scored.

    `se` is None for fewer than two documents, `bits_per_byte` where the bytes behind the tokens are not known.
    """

    mean: float
    se: float | None
    n_tokens: int
    n_documents: int
    bits_per_byte: float | None


class Provenance(_Strict):
    """Who made the number: code, versions, machine, time."""

    git_commit: str | None
    dirty: bool | None
    command: str
    versions: dict[str, str]
    device: str
    n_devices: int
    n_threads: int
    dtype: str
    compile: bool
    microbatch_tokens: int
    started: str
    ended: str


class RunRecord(_Strict):
    """One run. `recipe` is `TrainSpec.resolved()`; a failed run is a row too, with the step it reached."""

    schema_version: int = SCHEMA
    run_id: str
    kind: Literal["measured", "smoke"] = "measured"
    suite: str | None = None
    design: str
    options: dict[str, Any]
    shape: dict[str, int]
    params: Params
    recipe: dict[str, Any]
    optimizer_groups: list[dict[str, Any]]
    data: DataRef
    status: Literal["complete", "diverged", "stopped"]
    reason: str | None = None
    steps: int
    tokens: int
    val_loss: ValLoss | None
    train_loss_last: float | None
    grad_norm_max: float | None
    curve: str
    weights_sha256: str | None
    wall_s: float
    tokens_per_s: float
    peak_bytes: int
    n_resumes: int
    provenance: Provenance


class RecordError(ValueError):
    """A record file that cannot be read as records."""


def append(record: RunRecord, path: Path = LOCAL_RUNS) -> None:
    """Add one line to a record file: locked, flushed to disk, never rewriting what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = record.model_dump_json() + "\n"
    with FileLock(f"{path}.lock"), open(path, "a+b") as out:
        # A line cut short by a full disk or a kill must not swallow the next one.
        if out.seek(0, os.SEEK_END) and (out.seek(-1, os.SEEK_END), out.read(1))[1] != b"\n":
            out.write(b"\n")
        out.write(line.encode())
        out.flush()
        os.fsync(out.fileno())


def read(path: Path) -> Iterator[RunRecord]:
    """Records of a file in order; raises RecordError naming file and line for one that does not validate.

    A last line without its newline is a write that was cut off: it is left out, since its run will be written again.
    """
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield RunRecord.model_validate_json(line)
        except ValidationError as error:
            if number == text.count("\n") + 1:
                return
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise RecordError(
                f"{path}:{number}: not a run record: {where}: {first['msg']}; mend or remove that line"
            ) from None


def latest(path: Path) -> dict[str, RunRecord]:
    """The last record of each run id: a run that was stopped and then finished has two lines."""
    return {record.run_id: record for record in read(path)}


def recipe_key(recipe: dict[str, Any]) -> str:
    """A short hash of what two runs must share before their losses are compared: all but design, shape, rate, seeds."""
    shared = {key: value for key, value in recipe.items() if key not in _SCIENTIFIC}
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:8]


def flatten(record: RunRecord, origin: str) -> dict[str, Any]:
    """A record as one flat row; units stand in the names."""
    val, shape = record.val_loss, record.shape
    return {
        "run_id": record.run_id,
        "origin": origin,
        "kind": record.kind,
        "suite": record.suite,
        "design": record.design,
        "options": json.dumps(record.options, sort_keys=True),
        **shape,
        "aspect_ratio": shape["d_model"] / shape["n_layers"],
        **{f"params_{key}": value for key, value in record.params.model_dump().items()},
        "recipe": recipe_key(record.recipe),
        "lr": record.recipe["lr"],
        "seed": record.recipe["seed"],
        "data_seed": record.recipe["data_seed"],
        "data_name": record.data.name,
        "data_sha256": record.data.train_sha256,
        "seq_len": record.recipe["seq_len"],
        "global_batch_tokens": record.recipe["global_batch_tokens"],
        "status": record.status,
        "reason": record.reason,
        "steps": record.steps,
        "n_tokens": record.tokens,
        "val_loss_nats": val.mean if val else None,
        "val_loss_se": val.se if val else None,
        "val_n_tokens": val.n_tokens if val else None,
        "bits_per_byte": val.bits_per_byte if val else None,
        "train_loss_last": record.train_loss_last,
        "grad_norm_max": record.grad_norm_max,
        "wall_s": record.wall_s,
        "tokens_per_s": record.tokens_per_s,
        "peak_bytes": record.peak_bytes,
        "n_resumes": record.n_resumes,
        "weights_sha256": record.weights_sha256,
        "git_commit": record.provenance.git_commit,
        "dirty": record.provenance.dirty,
        "dtype": record.provenance.dtype,
        "device": record.provenance.device,
        "started": record.provenance.started,
        "ended": record.provenance.ended,
    }


def load_runs(
    origin: Literal["all", "committed", "local"] = "all", *, committed: Path = COMMITTED_RUNS, local: Path = LOCAL_RUNS
) -> pd.DataFrame:
    """All runs as a pandas frame, one row a run id (its last line).

    `origin="all"` joins the committed and the local file, the local row winning; "committed" and "local" give one of
    them. The column `origin` says which. An empty frame has all columns. Raises RecordError for a line that is not a
    record.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name, path in (("committed", committed), ("local", local)):
        if origin in ("all", name):
            rows |= {run_id: flatten(record, name) for run_id, record in latest(path).items()}
    if not rows:
        return pd.DataFrame(columns=_COLUMNS)
    return pd.DataFrame(list(rows.values())).sort_values(
        ["suite", "design", "n_layers", "lr", "seed"], ignore_index=True
    )


# What a benchmark varies, and the seeds it repeats over.
_SCIENTIFIC = {"design", "options", "shape", "lr", "seed", "data_seed"}
_COLUMNS = [
    "run_id", "origin", "kind", "suite", "design", "options", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff",
    "vocab_size", "aspect_ratio", "params_total", "params_backbone", "params_embedding", "params_design", "recipe",
    "lr", "seed", "data_seed", "data_name", "data_sha256", "seq_len", "global_batch_tokens", "status", "reason",
    "steps", "n_tokens", "val_loss_nats", "val_loss_se", "val_n_tokens", "bits_per_byte", "train_loss_last",
    "grad_norm_max", "wall_s", "tokens_per_s", "peak_bytes", "n_resumes", "weights_sha256", "git_commit", "dirty",
    "dtype", "device", "started", "ended",
]  # fmt: skip
