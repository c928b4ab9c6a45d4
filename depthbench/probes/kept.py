"""Probe results that are kept: small files, results/probes/<run id>/final/<probe> and .../step0/<probe>.

Chapters read these and never a checkpoint. To stay small a kept result has single values where the figures draw bands
(documents are resampled there) and the mean over documents elsewhere; numbers other than losses have 13 bits. No torch
is imported here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from depthbench.paths import RESULTS
from depthbench.probes.results import ProbeFileError, ProbeResult, load

KEPT = RESULTS / "probes"
STATES = ("final", "step0")
COMMAND = "python -m depthbench.probes RUN_DIR"

# Arrays of each probe kept document by document; losses whole, since their small differences are what counts.
BY_DOCUMENT: dict[str, tuple[str, ...]] = {
    "angular_distance": (),
    "causal_scores": ("score", "branch_score"),
    "permutation_scores": ("swapped_loss", "loss"),
    "layer_pruning": ("loss_increase", "loss"),
    "logit_lens": ("kl_final_to_layer", "loss", "top1_agreement"),
    "path_weights": ("unexplained",),
    "depth_mixing": ("running_sum", "embedding"),
    "residual_transport": ("effective_rank", "effective_rank_energy", "stream_overlap"),
    "branch_norms": ("relative_norm", "end_share"),
}
_WHOLE = ("loss", "swapped_loss", "pruned_loss", "loss_increase")
_BITS = 13


def compact(result: ProbeResult) -> ProbeResult:
    """The same result in float32, with means over documents where no band is drawn."""
    rows = {}
    for name, values in result.by_document.items():
        kept = values if name in BY_DOCUMENT[result.probe] else values.mean(0, keepdims=True)
        rows[name] = kept.astype(np.float32) if name in _WHOLE else short(kept)
    told = {**result.provenance, "n_documents": result.n_documents}
    return replace(result, by_document=rows, provenance=told)


def short(values: np.ndarray) -> np.ndarray:
    """float32 rounded to 13 bits (relative error 2^-14), so that files compress."""
    drop = 23 - _BITS
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(1 << (drop - 1))) >> np.uint32(drop)) << np.uint32(drop)
    return np.where(np.isfinite(values), rounded.view(np.float32), np.asarray(values, np.float32))


def runs(folder: Path | str = KEPT) -> list[str]:
    """Ids of the runs with kept results, sorted."""
    return sorted({path.parent.parent.name for state in STATES for path in Path(folder).glob(f"*/{state}/*.json")})


def read(run_id: str, probe: str, state: str = "final", folder: Path | str = KEPT) -> ProbeResult | None:
    """A kept result; None where there is none. Raises ProbeFileError for a damaged one."""
    base = Path(folder) / run_id / state / probe
    return load(base) if base.with_name(f"{probe}.json").exists() else None


def same(result: ProbeResult | None, **wanted: Any) -> bool:
    """Whether a kept result was made of these weights, this text and this code."""
    return result is not None and all(result.provenance.get(key) == value for key, value in wanted.items())


def readable(run_id: str, probe: str, state: str, folder: Path | str) -> ProbeResult | None:
    """As `read`, with None for a damaged one, which is to be made again."""
    try:
        return read(run_id, probe, state, folder)
    except ProbeFileError:
        return None


@dataclass(frozen=True)
class Choice:
    """One trained result a design beside its control, in the order of the designs, and the designs without one."""

    trained: list[ProbeResult]
    step_0: list[ProbeResult]
    missing: list[str]

    @property
    def designs(self) -> list[str]:
        """Registry names of the designs shown."""
        return [result.provenance["design"] for result in self.trained]

    def of(self, design: str) -> tuple[ProbeResult, ProbeResult | None]:
        """Result and control of a design; raises KeyError for one that is not shown."""
        for result in self.trained:
            if result.provenance["design"] == design:
                controls = [c for c in self.step_0 if c.provenance["run_id"] == result.provenance["run_id"]]
                return result, controls[0] if controls else None
        raise KeyError(f"no kept result of {design}; there are {', '.join(self.designs) or 'none'}")

    def words(self, able: Collection[str] | None = None) -> str:
        """Which runs are shown, and which designs of `able` (default: all of the paper's) have none yet."""
        shown = ", ".join(f"`{result.provenance['run_id']}`" for result in self.trained) or "none"
        gone = [name for name in self.missing if able is None or name in able]
        if not gone:
            return f"Runs shown: {shown}."
        return (
            f"Runs shown: {shown}. Without kept results: {', '.join(gone)}; `{COMMAND}` makes them from a finished run."
        )


def choose(
    probe: str,
    *,
    n_layers: int = 0,
    designs: Iterable[str] = (),
    same_depth: bool = True,
    folder: Path | str = KEPT,
) -> Choice:
    """One kept result a design: at `n_layers`, or (0) at the deepest depth that at least two designs have.

    With `same_depth` False each design is shown at its own deepest. All are of one text and number of steps: those with
    results of the most designs, then the longest. Of several runs of a design and depth, the one of the lowest
    validation loss. `designs`: empty for all.
    """
    from depthbench.designs import names

    wanted = list(designs) or list(names())
    found = [r for run_id in runs(folder) if (r := read(run_id, probe, "final", folder)) is not None]
    found = _one_budget([r for r in found if r.provenance["design"] in wanted])
    depth = n_layers or (_shared_depth(found) if same_depth else 0)
    picked = []
    for name in wanted:
        own = [r for r in found if r.provenance["design"] == name and (not depth or _depth(r) == depth)]
        if own:
            picked.append(min(own, key=lambda r: (-_depth(r), r.provenance.get("val_loss_nats") or np.inf)))
    controls = [read(r.provenance["run_id"], probe, "step0", folder) for r in picked]
    have = {r.provenance["design"] for r in picked}
    return Choice(picked, [c for c in controls if c is not None], [name for name in wanted if name not in have])


def _one_budget(found: list[ProbeResult]) -> list[ProbeResult]:
    groups: dict[tuple[int, str], list[ProbeResult]] = {}
    for result in found:
        recipe = result.provenance.get("recipe", {})
        groups.setdefault((recipe.get("n_steps", 0), str(recipe.get("data"))), []).append(result)
    if not groups:
        return []
    covered = {key: len({r.provenance["design"] for r in group}) for key, group in groups.items()}
    return groups[max(groups, key=lambda key: (covered[key], *key))]


def _depth(result: ProbeResult) -> int:
    return int(result.provenance["n_layers"])


def _shared_depth(found: list[ProbeResult]) -> int:
    by_depth: dict[int, set[str]] = {}
    for result in found:
        by_depth.setdefault(_depth(result), set()).add(result.provenance["design"])
    shared = [depth for depth, who in by_depth.items() if len(who) > 1]
    return max(shared or by_depth, default=0)
