"""All probes of a model, or of a finished run and its control, kept as small files."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from tqdm import tqdm

from depthbench import checkpoints, data, provenance
from depthbench.probes import angular, causal, lens, mixing, norms, paths, permutation, pruning, transport
from depthbench.probes.control import at_step_0
from depthbench.probes.kept import KEPT, STATES, compact, readable, same
from depthbench.probes.measure import CACHE, code_version, weights_sha256
from depthbench.probes.results import ProbeResult
from depthbench.probes.windows import Windows, document_windows

PROBES: dict[str, Callable[..., ProbeResult]] = {
    "angular_distance": angular.angular_distance,
    "causal_scores": causal.causal_scores,
    "layer_pruning": pruning.layer_pruning,
    "logit_lens": lens.logit_lens,
    "path_weights": paths.path_weights,
    "branch_norms": norms.branch_norms,
    "depth_mixing": mixing.depth_mixing,
    "residual_transport": transport.residual_transport,
    "permutation_scores": permutation.permutation_scores,
}
_ONLY = {"depth_mixing": ("full_attnres", "block_attnres"), "residual_transport": ("hc", "mhc")}


def probes_for(design: str, chosen: Sequence[str] = ()) -> list[str]:
    """The probes that mean something for a design, all or of those chosen.

    Raises ValueError for a name that is no probe.
    """
    if unknown := sorted(set(chosen) - set(PROBES)):
        raise ValueError(f"no probe {', '.join(unknown)}; the probes are {', '.join(PROBES)}")
    return [name for name in chosen or PROBES if name not in _ONLY or design in _ONLY[name]]


def probe_model(model: nn.Module, windows: Any, chosen: Sequence[str] = (), **running: Any) -> dict[str, ProbeResult]:
    """The results of all probes of a model (or of those chosen), by name; `running` as in `measure`."""
    inner: Any = model
    names = probes_for(inner.design.card.name, chosen)
    return {name: PROBES[name](model, windows, **running) for name in names}


def probe_run(
    run_dir: Path | str,
    chosen: Sequence[str] = (),
    *,
    out: Path | str = KEPT,
    states: Collection[str] = STATES,
    n_windows: int = 32,
    seq_len: int | None = None,
    data_root: Path | str | None = None,
    batch_size: int = 8,
    progress: bool = True,
) -> dict[str, list[str]]:
    """Probe the final checkpoint of a run and the model it started from; keep small files under `out`/<run id>.

    The text: one window of `seq_len` tokens (default: the run's) from each of `n_windows` held-out documents. A kept
    result of the same weights, text and code is left as it is. Returns the probes `made` and `left`, as state/probe.
    """
    model, spec = checkpoints.load_checkpoint(run_dir)
    if spec.data is None or spec.seed is None:
        raise ValueError(f"{run_dir} does not say what it was trained from; give a run folder of depthbench")
    windows = validation_windows(spec.data, n_windows, seq_len or spec.seq_len, data_root)
    commit, dirty = provenance.git_state()
    told = {
        "run_id": spec.run_id,
        "recipe": {"lr": spec.lr, "seed": spec.seed, "n_steps": spec.n_steps, "data": spec.data},
        "val_loss_nats": _val_loss(Path(run_dir)),
        "git_commit": commit,
        "dirty": dirty,
        "versions": provenance.versions(),
    }
    names = probes_for(spec.design, chosen)
    done: dict[str, list[str]] = {"made": [], "left": []}
    with tqdm(total=len(states) * len(names), desc=spec.run_id, unit="probe", disable=not progress) as bar:
        for state in states:
            probed = model if state == "final" else at_step_0(spec)
            wanted = {
                "weights_sha256": weights_sha256(probed),
                "text_sha256": windows.sha256,
                "code": code_version(),
            }
            for name in names:
                bar.set_postfix_str(f"{state}/{name}")
                if same(readable(spec.run_id, name, state, out), **wanted):
                    done["left"].append(f"{state}/{name}")
                else:
                    result = PROBES[name](probed, windows, batch_size=batch_size, progress=progress, cache=CACHE)
                    result.provenance.update(told, state=state)
                    compact(result).save(Path(out) / spec.run_id / state / name)
                    done["made"].append(f"{state}/{name}")
                bar.update()
    return done


def validation_windows(name: str, n_windows: int, seq_len: int, root: Path | str | None = None) -> Windows:
    """One window from each of `n_windows` held-out documents of a prepared data set."""
    text = data.load(name) if root is None else data.load(name, root)
    source = {"data": text.name, "revision": text.manifest["revision"], "split": "val"}
    return document_windows(
        text.val_tokens(), text.doc_starts("val"), n_windows=n_windows, seq_len=seq_len, source=source
    )


def _val_loss(run_dir: Path) -> float | None:
    """The validation loss a run's record holds, if there is a record."""
    record = run_dir / "record.json"
    found = json.loads(record.read_text()).get("val_loss") if record.exists() else None
    return float(found["mean"]) if found else None
