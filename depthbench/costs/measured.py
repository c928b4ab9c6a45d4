"""Rows of `benchmarks/prefill.py`: how long one forward pass takes and what it holds, on one machine.

One line a design and shape, append-only, in `results/costs/*.jsonl`. Times of different machines are never averaged;
`device`, `clock` and `dtype` stand in each row.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from depthbench import records
from depthbench.paths import RESULTS

SCHEMA = 1
FOLDER = RESULTS / "costs"
PREFILL = FOLDER / "prefill.jsonl"


class PrefillRow(BaseModel):
    """One design at one shape: forward passes over `batch_size` sequences of `seq_len` tokens, logits of the last.

    `seconds` has one value a turn, `ratios` the same over Pre-LN's time in that turn (designs take turns in one
    process). `clock` is "process" (CPU seconds of the process, which other work on the machine does not lengthen by
    waiting) or "wall" (a GPU, waited for). `peak_bytes` is the rise of memory over one pass, weights left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    kind: Literal["prefill"] = "prefill"
    suite: str | None
    design: str
    options: dict[str, Any]
    shape: dict[str, int]
    params_total: int
    seq_len: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    clock: Literal["process", "wall"]
    seconds: tuple[float, ...] = Field(min_length=1)
    ratios: tuple[float, ...] = Field(min_length=1)
    flops: int
    weight_bytes: int
    peak_bytes: int | None
    provenance: records.Provenance

    def setting(self) -> str:
        """What a second measurement would share with this one: all but the numbers, the commit and the time."""
        p = self.provenance
        own = self.model_dump(include={"suite", "design", "options", "shape", "seq_len", "batch_size", "clock"})
        return json.dumps([own, p.device, p.n_threads, p.dtype, p.compile], sort_keys=True)


def append_prefill(row: PrefillRow, path: Path = PREFILL) -> None:
    """Add one line to a file of rows: locked, flushed to disk, never rewriting what is there."""
    records.append(cast(Any, row), path)


def read_prefill(path: Path) -> list[PrefillRow]:
    """Rows of one file, the last of every setting, in order; a last line that a kill cut off is left out.

    Raises `records.RecordError` naming file and line for one that is no such row.
    """
    if not path.exists():
        return []
    rows: dict[str, PrefillRow] = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = PrefillRow.model_validate_json(line)
        except ValidationError as error:
            if number == len(lines):
                break
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise records.RecordError(
                f"{path}:{number}: not a prefill row: {where}: {first['msg']}; mend or remove that line"
            ) from None
        rows[row.setting()] = row
    return list(rows.values())


def load_prefill(folder: Path = FOLDER) -> pd.DataFrame:
    """All measured prefills as a frame, one row a setting, from the files of a folder; an empty one has all columns.

    `seconds`, `ratio` (to Pre-LN) and `tokens_per_s` are of the median turn, `seconds_min` and `seconds_max` its
    spread; `flops` is the closed form counted as the paper does, for the whole batch, `flops_per_s` that over seconds.
    """
    rows = [_flat(row) for path in sorted(folder.glob("*.jsonl")) for row in read_prefill(path)]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _flat(row: PrefillRow) -> dict[str, Any]:
    seconds, p = statistics.median(row.seconds), row.provenance
    return {
        "suite": row.suite,
        "design": row.design,
        "options": json.dumps(row.options, sort_keys=True),
        **row.shape,
        "aspect_ratio": row.shape["d_model"] / row.shape["n_layers"],
        "params_total": row.params_total,
        "seq_len": row.seq_len,
        "batch_size": row.batch_size,
        "seconds": seconds,
        "seconds_min": min(row.seconds),
        "seconds_max": max(row.seconds),
        "n_turns": len(row.seconds),
        "ratio": statistics.median(row.ratios),
        "tokens_per_s": row.batch_size * row.seq_len / seconds,
        "flops": row.flops,
        "flops_per_s": row.flops / seconds,
        "weight_bytes": row.weight_bytes,
        "peak_bytes": row.peak_bytes,
        "clock": row.clock,
        "device": p.device,
        "n_threads": p.n_threads,
        "dtype": p.dtype,
        "compile": p.compile,
        "git_commit": p.git_commit,
        "dirty": p.dirty,
        "ended": p.ended,
    }


_COLUMNS = [
    "suite", "design", "options", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab_size", "aspect_ratio",
    "params_total", "seq_len", "batch_size", "seconds", "seconds_min", "seconds_max", "n_turns", "ratio",
    "tokens_per_s", "flops", "flops_per_s", "weight_bytes", "peak_bytes", "clock", "device", "n_threads", "dtype",
    "compile", "git_commit", "dirty", "ended",
]  # fmt: skip
