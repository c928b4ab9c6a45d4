"""The registry of residual designs: one line a design, each in a file of its own.

Importing this package is light; `get` and `configure` import the file of the design they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depthbench.designs.base import Card, Design

_REGISTRY = {
    "pre_ln": "pre_ln:PreLN",
    "sandwich_ln": "sandwich_ln:SandwichLN",
    "lns": "lns:LayerNormScaling",
    "deepnorm": "deepnorm:DeepNorm",
    "keel": "keel:Keel",
    "hc": "hc:HyperConnections",
    "mhc": "mhc:ManifoldHyperConnections",
    "full_attnres": "attn_res:FullAttnRes",
    "block_attnres": "block_attn_res:BlockAttnRes",
    "moda": "moda:MoDA",
    "depth_mup": "depth_mup:DepthMuP",
    "complete_p": "depth_mup:CompleteP",
}
# Registered beside the paper's ten: usable by name everywhere, in no suite unless asked for.
_EXTRAS = ("depth_mup", "complete_p")


class UnknownDesign(KeyError, ValueError):
    """A design name that the registry does not hold."""

    def __str__(self) -> str:
        return str(self.args[0])


def names(*, extras: bool = False) -> tuple[str, ...]:
    """Names of the paper's ten designs, in its order; with `extras` those registered beside them too."""
    return tuple(name for name in _REGISTRY if extras or name not in _EXTRAS)


def load(name: str) -> type[Design]:
    """The design class registered as `name`; raises UnknownDesign."""
    if name not in _REGISTRY:
        raise UnknownDesign(f"unknown design {name!r}; registered designs: {', '.join(_REGISTRY)}")
    module, cls = _REGISTRY[name].split(":")
    return getattr(import_module(f"depthbench.designs.{module}"), cls)


def get(name: str) -> Card:
    """The card of a design: label, family, equation, source, weight, best published rate; raises UnknownDesign."""
    from dataclasses import replace

    cls = load(name)
    return replace(cls.card, design=cls)


def configure(name: str, **options: Any) -> Design:
    """A design with its options set; raises UnknownDesign, or ValueError naming the options it has."""
    cls = load(name)
    allowed = get(name).options
    if unknown := sorted(set(options) - set(allowed)):
        raise ValueError(f"design {name!r} has no option {', '.join(unknown)}; its options: {allowed or 'none'}")
    return cls(**options)
