"""The text a probe reads: windows of tokens, each from one document, so that documents can be resampled."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """Token ids (n, T), the document of each row (n,), and where they come from."""

    ids: np.ndarray
    documents: np.ndarray
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Hash of ids and documents: what was read, whatever it is called."""
        digest = hashlib.sha256(repr(self.ids.shape).encode())
        for array in (self.ids, self.documents):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return digest.hexdigest()


def document_windows(
    tokens: np.ndarray,
    document_starts: np.ndarray,
    *,
    n_windows: int = 64,
    seq_len: int = 256,
    seed: int = 0,
    source: dict[str, Any] | None = None,
) -> Windows:
    """One window of `seq_len` tokens from each of `n_windows` documents, drawn without replacement.

    A window never crosses a document's end. `tokens` (n,) and `document_starts` (documents + 1,) are those of
    `TokenData.tokens` and `.doc_starts`. Raises ValueError where too few documents are that long.
    """
    starts = np.asarray(document_starts)
    long_enough = np.flatnonzero(np.diff(starts) >= seq_len)
    if len(long_enough) < n_windows:
        raise ValueError(
            f"{len(long_enough)} documents have {seq_len} tokens or more, {n_windows} windows were asked for; "
            "ask for fewer or shorter ones"
        )
    rng = np.random.default_rng(seed)
    documents = np.sort(rng.choice(long_enough, n_windows, replace=False))
    room = starts[documents + 1] - starts[documents] - seq_len
    first = starts[documents] + rng.integers(0, room + 1)
    ids = np.stack([np.asarray(tokens[s : s + seq_len], dtype=np.int64) for s in first])
    told = {"n_windows": n_windows, "seq_len": seq_len, "seed": seed, **(source or {})}
    return Windows(ids, documents.astype(np.int64), told)


def as_windows(tokens: Any) -> Windows:
    """Windows of what a probe was given: Windows as they are, or ids (n, T), each row a document of its own.

    Raises ValueError for a flat stream, an empty array or ids that are no integers.
    """
    if isinstance(tokens, Windows):
        return tokens
    ids = tokens.detach().cpu().numpy() if isinstance(tokens, Tensor) else np.asarray(tokens)
    if ids.ndim != 2 or 0 in ids.shape:
        raise ValueError(
            f"probes read windows of tokens, an array (n, T), got shape {ids.shape}; "
            "cut a stream with probes.document_windows(tokens, document_starts)"
        )
    if ids.dtype.kind not in "iu":
        raise ValueError(f"token ids must be integers, got {ids.dtype}")
    return Windows(ids.astype(np.int64), np.arange(len(ids)))


def batches(windows: Windows, batch_size: int, device: Any) -> list[Tensor]:
    """The windows (B, T) in order, the last batch short."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    return [
        torch.from_numpy(windows.ids[i : i + batch_size]).to(device) for i in range(0, len(windows.ids), batch_size)
    ]
