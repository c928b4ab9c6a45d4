"""What a probe gives back: named arrays with labelled axes, units and provenance; saved as npz beside json.

Every array has one value a document, and its mean over documents. Bands come from resampling documents, since tokens of
one text are no independent witnesses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FORMAT = "depthbench-probe-1"


class ProbeFileError(ValueError):
    """A file that is not a saved probe result, or a damaged one."""


@dataclass(frozen=True)
class ProbeResult:
    """One probe of one model.

    `by_document[name]` has shape (documents, *axes); `axes[name]` names the axes, `labels[axis]` their ticks,
    `units[name]` the unit. NaN stands where a value has no meaning (a layer's effect on an earlier one).
    `provenance` holds design, shape, hashes of weights and text, options.
    """

    probe: str
    by_document: dict[str, np.ndarray]
    axes: dict[str, tuple[str, ...]]
    units: dict[str, str]
    labels: dict[str, list[Any]]
    provenance: dict[str, Any]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The mean over documents of every array."""
        return {name: rows.mean(0) for name, rows in self.by_document.items()}

    @property
    def n_documents(self) -> int:
        """Number of documents, the sampling unit; 1 where only means were kept."""
        return max(map(len, self.by_document.values()))

    def __getitem__(self, name: str) -> np.ndarray:
        """The mean over documents of one array; raises KeyError naming those there are."""
        return self._rows(name).mean(0)

    def to_frame(self, name: str | None = None) -> pd.DataFrame:
        """One row a cell, without the NaNs: a column an axis and a column an array.

        All arrays that have the axes of `name`, by default of the first.
        """
        axes = self.axes[name or next(iter(self.by_document))] if name is None or name in self.axes else None
        if axes is None:
            raise KeyError(self._no_such(str(name)))
        same = [other for other in self.by_document if self.axes[other] == axes]
        index = pd.MultiIndex.from_product([self.labels[axis] for axis in axes], names=list(axes))
        frame = pd.DataFrame({other: self[other].reshape(-1) for other in same}, index=index)
        return frame.dropna(how="all").reset_index()

    def bootstrap(
        self,
        name: str,
        statistic: Callable[[np.ndarray], Any] = lambda mean: mean,
        *,
        n: int = 1000,
        level: float = 0.95,
        seed: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper edge of the percentile interval of `statistic(mean over documents)`, documents resampled.

        Raises ValueError for fewer than two documents.
        """
        rows = self._rows(name)
        if len(rows) < 2:
            raise ValueError("one document cannot be resampled; read at least two")
        rng = np.random.default_rng(seed)
        flat = rows.reshape(len(rows), -1)
        # Counts times rows is the resampled mean, without a copy of the rows.
        counts = rng.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=n) / len(rows)
        draws = np.stack([np.asarray(statistic((c @ flat).reshape(rows.shape[1:]))) for c in counts])
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high

    def save(self, path: Path | str) -> Path:
        """Write `path`.npz and `path`.json, whole or not at all; returns the path of the json."""
        base = Path(path)
        base.parent.mkdir(parents=True, exist_ok=True)
        told = {
            "format": FORMAT,
            "probe": self.probe,
            "axes": self.axes,
            "units": self.units,
            "labels": self.labels,
            "provenance": self.provenance,
        }
        write_arrays(base.with_name(base.name + ".npz"), self.by_document)
        target = base.with_name(base.name + ".json")
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        part.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        part.replace(target)
        return target

    def _rows(self, name: str) -> np.ndarray:
        if name not in self.by_document:
            raise KeyError(self._no_such(name))
        return self.by_document[name]

    def _no_such(self, name: str) -> str:
        return f"{self.probe} has no array {name!r}; it has {', '.join(self.by_document)}"


def load(path: Path | str) -> ProbeResult:
    """A saved result, by its path without ending, or with .json or .npz. Nothing is unpickled.

    Raises ProbeFileError in words for a missing, foreign or damaged one.
    """
    given = Path(path)
    base = given.with_suffix("") if given.suffix in (".json", ".npz") else given
    told_path, arrays_path = (base.with_name(base.name + ending) for ending in (".json", ".npz"))
    for needed in (told_path, arrays_path):
        if not needed.exists():
            raise ProbeFileError(f"{needed} is missing; a saved result is a .json beside a .npz")
    try:
        told = json.loads(told_path.read_text(encoding="utf-8"))
        if told["format"] != FORMAT:
            raise ProbeFileError(f"{told_path} is of format {told['format']!r}, this version reads {FORMAT!r}")
        arrays = read_arrays(arrays_path)
        axes = {name: tuple(told["axes"][name]) for name in arrays}
        return ProbeResult(told["probe"], arrays, axes, told["units"], told["labels"], told["provenance"])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ProbeFileError(f"{told_path} is not a saved result ({type(error).__name__}: {error})") from None


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An npz file, written whole or not at all."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(part, "wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file; raises ProbeFileError for one that cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise ProbeFileError(f"{path} cannot be read ({type(error).__name__}: {error})") from None
    except Exception as error:  # zipfile.BadZipFile, zlib.error: a file cut short
        raise ProbeFileError(f"{path} is damaged ({type(error).__name__}: {error})") from None
