"""depthbench: at a fixed parameter budget, which residual connections turn extra layers into extra computation?

Public names are loaded when first used, so that `depthbench.Shape` does not pay for importing the trainer.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# OLMo-core warns at import that an optional GPU library is absent; on a page of the book that would be noise.
logging.getLogger("olmo_core.nn.attention.te_attn_api").setLevel(logging.ERROR)

_NAMES = {
    "Shape": "shapes",
    "solve": "shapes",
    "frontier": "shapes",
    "InfeasibleShape": "shapes",
    "SUITES": "suites",
    "build_model": "model",
    "TrainSpec": "spec",
    "train": "training",
    "load_checkpoint": "checkpoints",
    "open_checkpoint": "checkpoints",
    "RunRecord": "records",
    "load_runs": "records",
}
_MODULES = (
    "costs",
    "designs",
    "shapes",
    "published",
    "data",
    "evaluate",
    "probes",
    "figures",
    "interactive",
    "records",
    "checkpoints",
    "paths",
)

if TYPE_CHECKING:
    from depthbench import (
        checkpoints,
        costs,
        data,
        designs,
        evaluate,
        figures,
        interactive,
        paths,
        published,
        records,
        shapes,
    )
    from depthbench.checkpoints import load_checkpoint, open_checkpoint
    from depthbench.model import build_model
    from depthbench.records import RunRecord, load_runs
    from depthbench.shapes import InfeasibleShape, Shape, frontier, solve
    from depthbench.spec import TrainSpec
    from depthbench.suites import SUITES
    from depthbench.training import train

__all__ = [*_NAMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(f"depthbench.{_NAMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f"depthbench.{name}")
    raise AttributeError(f"module 'depthbench' has no attribute {name!r}; it has {', '.join(sorted(__all__))}")


def __dir__() -> list[str]:
    return sorted(__all__)
