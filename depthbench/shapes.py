"""How wide is a model of a given depth, at a fixed parameter budget? Exact counts and the iso-parameter solver.

The backbone is the paper's (arXiv 2609.32534): a LLaMA-like decoder without biases, with untied embeddings, two norm
gains a block and one before the head. To first order N = 12 L d^2 + 2 V d; here every tensor is counted.

Legend: L n_layers, d d_model, V vocab_size, h head_dim, k n_kv_heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, get_args

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from depthbench import designs

FeedForwardRule = Literal["8d/3", "3d", "fill"]
BASELINE = "pre_ln"  # defines the backbone, so that its own count is zero


class InfeasibleShape(ValueError):
    """No width holds the budget at this depth; `below` and `above` are the nearest shapes, None where there is none."""

    def __init__(self, message: str, below: Shape | None = None, above: Shape | None = None):
        super().__init__(message)
        self.below = below
        self.above = above


@dataclass(frozen=True)
class ParamCount:
    """Exact parameter counts: total = backbone + embedding + design + the final norm's d.

    `backbone` is the blocks with their norms as in Pre-LN, `embedding` the two V x d tables, `design` what the residual
    design adds.
    """

    total: int
    backbone: int
    embedding: int
    design: int


class Shape(BaseModel):
    """Width, depth and heads of one model; raises ValidationError (a ValueError) where they do not fit together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_layers: int = Field(ge=1)
    d_model: int = Field(ge=2)
    n_heads: int = Field(ge=1)
    n_kv_heads: int = Field(default=None, ge=1, validate_default=True)  # None: as many as n_heads
    d_ff: int = Field(ge=1)
    vocab_size: int = Field(ge=1)

    @field_validator("n_kv_heads", mode="before")
    @classmethod
    def _all_heads(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("n_heads", 1) if value is None else value

    @model_validator(mode="after")
    def _heads_fit(self) -> Shape:
        remedy = f"take d_model a multiple of 2 * n_heads = {2 * self.n_heads}"
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads={self.n_heads} does not divide d_model={self.d_model}; {remedy}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd, and rotary embeddings turn pairs; {remedy}")
        _check_kv_heads(self.n_heads, self.n_kv_heads)
        return self

    @property
    def head_dim(self) -> int:
        """Width of one attention head, d_model / n_heads."""
        return self.d_model // self.n_heads

    @property
    def n_sublayers(self) -> int:
        """Residual branches, 2 L: attention and feed-forward of every layer."""
        return 2 * self.n_layers

    @property
    def aspect_ratio(self) -> float:
        """d_model / n_layers: large is shallow and wide, small is deep and narrow."""
        return self.d_model / self.n_layers

    def num_params(self, design: str = BASELINE, **options: Any) -> ParamCount:
        """Exact parameter counts of this shape under a design and its options.

        backbone = L (2 d^2 + 2 d k h + 3 d d_ff + 2 d); embedding = 2 V d; total = backbone + embedding + design + d.
        Raises UnknownDesign, or ValueError for an option the design lacks.
        """
        d = self.d_model
        attention = 2 * d * d + 2 * d * self.n_kv_heads * self.head_dim  # query and output; keys and values
        backbone = self.n_layers * (attention + 3 * d * self.d_ff + 2 * d)
        embedding = 2 * self.vocab_size * d
        own = _extra_params(design, options)(self)
        return ParamCount(total=backbone + embedding + own + d, backbone=backbone, embedding=embedding, design=own)

    def size(self, hold: Literal["total", "backbone"], design: str = BASELINE, **options: Any) -> int:
        """What a budget is compared with: the total, or the backbone; both count the design's own parameters."""
        count = self.num_params(design, **options)
        return count.total if hold == "total" else count.backbone + count.design


def feed_forward_width(d_model: int, ffn: FeedForwardRule = "8d/3") -> int:
    """Inner width of the SwiGLU branch.

    '8d/3' is 16 ceil(8 d / 48), the paper's below 1B; '3d' its rule at 1.6B; 'fill' is ours, for sizes at which steps
    of 16 are too coarse for the budget: 2 round(4 d / 3), from where `solve` fills the budget by steps of 2.
    """
    if ffn not in get_args(FeedForwardRule):
        raise ValueError(f"unknown feed-forward rule {ffn!r}; allowed: {', '.join(get_args(FeedForwardRule))}")
    if ffn == "fill":
        return 2 * ((8 * d_model + 3) // 6)
    return 3 * d_model if ffn == "3d" else 16 * -(-8 * d_model // 48)


def solve(
    *,
    total: float | None = None,
    backbone: float | None = None,
    n_layers: int,
    n_heads: int = 16,
    n_kv_heads: int | None = None,
    vocab_size: int = 50280,
    design: str = BASELINE,
    options: Mapping[str, Any] | None = None,
    ffn: FeedForwardRule = "8d/3",
    tolerance: float = 0.05,
) -> Shape:
    """The shape of `n_layers` layers whose size is nearest to a budget of `total` or `backbone` parameters.

    Widths are the multiples of 2 n_heads (even head_dim). The size counts the design's own parameters and grows with
    the width, so that bisection finds the nearest (of two equally near, the narrower). With the size of the paper's
    base shape as the budget this gives its Table 3 to the unit. With the rule 'fill' d_ff takes up the gap of the
    two nearest widths, and the one whose d_ff / d_model is nearer to 8 / 3 is taken.
    Raises InfeasibleShape (a ValueError) if the nearest is further than `tolerance` (relative), UnknownDesign, and
    ValueError for arguments that make no sense.
    """
    target, hold = _budget(total, backbone)
    kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    given = {"n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": kv_heads, "vocab_size": vocab_size}
    fixed = {name: _count(name, value) for name, value in given.items()}
    _check_kv_heads(fixed["n_heads"], fixed["n_kv_heads"])
    if not tolerance >= 0:
        raise ValueError(f"tolerance={tolerance} is not a relative gap; give a number from 0 up, such as 0.05")
    step = 2 * fixed["n_heads"]
    own = dict(options or {})

    @cache
    def at(k: int) -> tuple[int, Shape]:  # size and shape of the k-th width
        d = k * step
        shape = Shape(d_model=d, d_ff=feed_forward_width(d, ffn), **fixed)
        return shape.size(hold, design, **own), shape

    high = 1  # invariant below: the low-th width falls short of the target, the high-th reaches it
    while at(high)[0] < target:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle)[0] < target else (low, middle)
    below, above = (at(low) if low else None), at(high)
    near = [found for found in (below, above) if found]
    if ffn == "fill":
        filled = [_fill(shape, target - size) for size, shape in near]
        nearest = min(filled, key=lambda shape: abs(math.log(3 * shape.d_ff / (8 * shape.d_model))))
        size = nearest.size(hold, design, **own)
    else:
        size, nearest = min(near, key=lambda found: abs(found[0] - target))
    if abs(size / target - 1) > tolerance:
        raise InfeasibleShape(
            f"no width holds {hold}={target:,.0f} within {tolerance:.2%} for design {design!r} at "
            f"{', '.join(f'{name}={value}' for name, value in fixed.items())}; "
            f"widths are multiples of 2 * n_heads = {step}.\n"
            f"  nearest below: {_describe(below, target)}\n  nearest above: {_describe(above, target)}\n"
            f"Give one of these sizes as the budget, tolerance={math.ceil(1000 * abs(size / target - 1)) / 1000:g} "
            "or more, fewer n_heads (a finer grid of widths), or another n_layers.",
            below[1] if below else None,
            above[1],
        )
    return nearest


def frontier(
    *, total: float | None = None, backbone: float | None = None, depths: Iterable[int] = range(2, 97), **how: Any
) -> list[Shape]:
    """Every depth that can hold the budget, as shapes; depths with no width within the tolerance are left out.

    `how` takes the other arguments of `solve`. Raises ValueError for arguments that make no sense.
    """
    shapes = []
    for n_layers in depths:
        try:
            shapes.append(solve(total=total, backbone=backbone, n_layers=n_layers, **how))
        except InfeasibleShape:
            continue
    return shapes


def frontier_frame(*, total: float | None = None, backbone: float | None = None, **how: Any) -> pd.DataFrame:
    """The frontier as a table, one row a depth; takes what `frontier` takes. `relative_gap` is size / budget - 1."""
    target, hold = _budget(total, backbone)
    shapes = frontier(total=total, backbone=backbone, **how)
    return shapes_frame(shapes, target, hold, how.get("design", BASELINE), **(how.get("options") or {}))


def shapes_frame(
    shapes: Iterable[Shape], target: float, hold: Literal["total", "backbone"], design: str = BASELINE, **options: Any
) -> pd.DataFrame:
    """Shapes as a table: width, depth, exact counts under `design`, and the relative gap of their size to `target`."""
    counts = list(ParamCount.__dataclass_fields__)
    columns = ["n_layers", "d_model", "d_ff", "head_dim", "aspect_ratio", *counts, "relative_gap"]
    rows = [
        shape.model_dump(include={"n_layers", "d_model", "d_ff"})
        | {"head_dim": shape.head_dim, "aspect_ratio": shape.aspect_ratio}
        | asdict(shape.num_params(design, **options))
        | {"relative_gap": shape.size(hold, design, **options) / target - 1}
        for shape in shapes
    ]
    return pd.DataFrame(rows, columns=columns)


def _fill(shape: Shape, gap: float) -> Shape:
    """The shape with d_ff moved by steps of 2 to take up what the width leaves of the budget."""
    steps = math.floor(gap / (2 * 3 * shape.d_model * shape.n_layers) + 0.5)
    return shape.model_copy(update={"d_ff": max(2, shape.d_ff + 2 * steps)})


def _extra_params(design: str, options: Mapping[str, Any]) -> Callable[[Shape], int]:
    if design == BASELINE and not options:
        return lambda shape: 0  # by definition of the backbone, and without importing torch
    card = designs.get(design)
    return lambda shape: card.extra_params(shape, **options)


def _budget(total: float | None, backbone: float | None) -> tuple[float, Literal["total", "backbone"]]:
    if (total is None) == (backbone is None):
        raise ValueError(f"give exactly one budget, total= or backbone=; got total={total}, backbone={backbone}")
    value, hold = (total, "total") if backbone is None else (backbone, "backbone")
    if not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(f"{hold}={value} is not a number of parameters; give a positive number, such as 405e6")
    return float(value), "total" if hold == "total" else "backbone"


def _count(name: str, value: Any) -> int:
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}={value!r} is not a count; give a whole number from 1 up")
    return int(value)


def _check_kv_heads(n_heads: int, n_kv_heads: int) -> None:
    if n_heads % n_kv_heads:
        raise ValueError(f"n_kv_heads={n_kv_heads} does not divide n_heads={n_heads}; take a divisor (None: as many)")


def _describe(found: tuple[int, Shape] | None, target: float) -> str:
    if found is None:
        return "none"
    size, shape = found
    return f"d_model={shape.d_model}, d_ff={shape.d_ff}, size {size:,} ({size / target - 1:+.2%})"
