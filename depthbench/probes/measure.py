"""How every probe runs: batch by batch, under a progress bar, resumable, its result kept by what it depends on.

The key of a kept result is a hash of the weights, the design, the text, the probe's options and the code that computes
it, so that nothing stale is ever read. Each finished batch is a file of its own until the last is there: a kill loses
at most one batch.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import cache as once
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from depthbench.paths import BUILD, PACKAGE
from depthbench.probes.results import ProbeFileError, ProbeResult, load, read_arrays, write_arrays
from depthbench.probes.views import walk
from depthbench.probes.walk import Walk
from depthbench.probes.windows import as_windows, batches

CACHE = BUILD / "probes"

_AROUND = ("__main__", "control", "kept", "late", "report", "runs")  # files of probes/ that change no value of a probe

Tick = Callable[[], Any]
Measure = Callable[[Walk, Tensor, Tick], dict[str, np.ndarray]]  # of a batch (B, T): arrays (B, ...)


@torch.no_grad()
def measure(
    probe: str,
    model: nn.Module,
    tokens: Any,
    of_batch: Measure,
    *,
    axes: dict[str, tuple[str, ...]],
    units: dict[str, str],
    labels: dict[str, list[Any]],
    options: dict[str, Any],
    units_per_batch: int = 1,
    batch_size: int = 8,
    progress: bool = True,
    cache: Path | str | None = None,
) -> ProbeResult:
    """Run `of_batch` over all windows and average the rows of each document.

    `cache` is a folder for finished results and finished batches (`CACHE` is the usual one); None keeps nothing.
    """
    windows = as_windows(tokens)
    inner: Any = model
    if windows.ids.min() < 0 or windows.ids.max() >= inner.vocab_size:
        raise ValueError(f"token ids must be 0 to {inner.vocab_size - 1}, got up to {windows.ids.max()}")
    provenance = {
        "design": inner.design.card.name,
        "design_options": asdict(inner.design),
        "n_layers": inner.n_layers,
        "d_model": inner.d_model,
        "weights_sha256": weights_sha256(model),
        "text_sha256": windows.sha256,
        "text": {"n_windows": len(windows.ids), "seq_len": windows.ids.shape[1], **windows.source},
        "options": options,
        "code": code_version(),
    }
    store = _Store(cache, probe, provenance, batch_size)
    if (kept := store.finished()) is not None:
        return kept
    device = next(model.parameters()).device
    todo = batches(windows, batch_size, device)
    was_training = model.training
    model.eval()
    try:
        rows = []
        with tqdm(
            total=len(todo) * units_per_batch, desc=probe, disable=not progress, leave=False, mininterval=1.0
        ) as bar:
            for index, ids in enumerate(todo):
                part = store.batch(index)
                if part is None:
                    part = of_batch(walk(model), ids, bar.update)
                    store.keep_batch(index, part)
                rows.append(part)
                bar.n = (index + 1) * units_per_batch
                bar.refresh()
    finally:
        model.train(was_training)
    joined = {name: np.concatenate([part[name] for part in rows]) for name in axes}
    by_document = {name: _per_document(array, windows.documents) for name, array in joined.items()}
    result = ProbeResult(probe, by_document, axes, units, labels, provenance)
    store.keep(result)
    return result


def _per_document(rows: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """The mean of each document's windows, all of one length."""
    _, owner = np.unique(documents, return_inverse=True)
    if len(owner) == owner.max() + 1:
        return rows[np.argsort(owner)].astype(np.float64)
    return np.stack([rows[owner == d].mean(0) for d in range(owner.max() + 1)]).astype(np.float64)


def weights_sha256(model: nn.Module) -> str:
    """Hash of all weights with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


@once
def code_version() -> str:
    """Hash of the sources a probe's value depends on."""
    digest = hashlib.sha256()
    probes = [path for path in PACKAGE.glob("probes/*.py") if path.stem not in _AROUND]
    for path in sorted([*probes, *PACKAGE.glob("designs/*.py"), PACKAGE / "model.py"]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


class _Store:
    """Where finished batches and results are kept, if anywhere."""

    def __init__(self, folder: Path | str | None, probe: str, provenance: dict[str, Any], batch_size: int):
        self.path: Path | None = None
        if folder is not None:
            key = hashlib.sha256(json.dumps(provenance, sort_keys=True, default=str).encode()).hexdigest()[:16]
            self.path = Path(folder) / f"{probe}-{provenance['design']}-{key}"
            self.parts = self.path.with_name(f"{self.path.name}.batches-of-{batch_size}")

    def finished(self) -> ProbeResult | None:
        if self.path is None or not self.path.with_name(self.path.name + ".json").exists():
            return None
        try:
            return load(self.path)
        except ProbeFileError:
            return None  # damaged: made again

    def batch(self, index: int) -> dict[str, np.ndarray] | None:
        if self.path is None or not (self.parts / f"{index:05d}.npz").exists():
            return None
        try:
            return read_arrays(self.parts / f"{index:05d}.npz")
        except ProbeFileError:
            return None

    def keep_batch(self, index: int, part: dict[str, np.ndarray]) -> None:
        if self.path is not None:
            self.parts.mkdir(parents=True, exist_ok=True)
            write_arrays(self.parts / f"{index:05d}.npz", part)

    def keep(self, result: ProbeResult) -> None:
        if self.path is not None:
            result.save(self.path)
            shutil.rmtree(self.parts, ignore_errors=True)
