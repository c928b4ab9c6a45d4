"""Depth probes: does each layer matter? One probe a file, all on the same walk through the four verbs.

    result = probes.causal_scores(model, windows)          # ProbeResult: arrays, labels, units, provenance
    result["score"], result.to_frame(), result.bootstrap("score"), result.save(path); probes.load(path)

`windows` are token ids (n, T), each row a document of its own, or `document_windows(tokens, document_starts)`. Draw
every probe beside the same probe of `at_step_0(spec)`. Names are loaded when first used: reading a saved result imports
no model.
"""

# ruff: noqa: F401 - names for type checkers; at run time they are loaded when first used
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depthbench.probes.angular import angle_between, angular_distance
    from depthbench.probes.causal import causal_scores
    from depthbench.probes.control import at_step_0
    from depthbench.probes.late import late_scores, late_table, permutation_score, share_above, survival
    from depthbench.probes.lens import logit_lens
    from depthbench.probes.measure import CACHE
    from depthbench.probes.mixing import dead_segment, depth_mixing
    from depthbench.probes.norms import branch_norms
    from depthbench.probes.paths import path_weights
    from depthbench.probes.permutation import permutation_scores
    from depthbench.probes.pruning import layer_pruning, pruned_metric
    from depthbench.probes.results import ProbeFileError, ProbeResult, load
    from depthbench.probes.surgery import skipped, swapped
    from depthbench.probes.transport import effective_rank, residual_transport, stream_overlap
    from depthbench.probes.windows import Windows, document_windows

_NAMES = {
    "CACHE": "measure",
    "ProbeFileError": "results",
    "ProbeResult": "results",
    "Windows": "windows",
    "angle_between": "angular",
    "angular_distance": "angular",
    "at_step_0": "control",
    "branch_norms": "norms",
    "causal_scores": "causal",
    "dead_segment": "mixing",
    "depth_mixing": "mixing",
    "document_windows": "windows",
    "effective_rank": "transport",
    "late_scores": "late",
    "late_table": "late",
    "layer_pruning": "pruning",
    "load": "results",
    "logit_lens": "lens",
    "path_weights": "paths",
    "permutation_score": "late",
    "permutation_scores": "permutation",
    "pruned_metric": "pruning",
    "residual_transport": "transport",
    "share_above": "late",
    "skipped": "surgery",
    "stream_overlap": "transport",
    "survival": "late",
    "swapped": "surgery",
}

__all__ = [*_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(f"depthbench.probes.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'depthbench.probes' has no attribute {name!r}; it has {', '.join(sorted(_NAMES))}")


def __dir__() -> list[str]:
    return sorted(_NAMES)
