"""How does the width shrink as layers are added at a fixed budget? The shape explorer (Table 3, for any budget).

The page solves the same problem as `depthbench.shapes.solve`, in JS. A design's own parameters reach it as the
coefficients of a polynomial in the shape, fitted to the design's closed form and checked to be exact.

Legend: L n_layers, d d_model, k n_kv_heads * head_dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, get_args

import numpy as np

from depthbench import designs
from depthbench.interactive.figure import Figure, in_lab
from depthbench.shapes import FeedForwardRule, Shape, feed_forward_width
from depthbench.suites import SUITES, Suite

TOLERANCE = 0.05
TERMS = ("1", "L", "d", "Ld", "dd", "Ldd", "dk", "Ldk")
_RULES = {
    "8d/3": "16 ceil(8d/48), paper below 1B",
    "3d": "3d, paper at 1.6B",
    "fill": "8d/3, then what fills the budget",
}


def extra_polynomial(design: str) -> dict[str, int] | None:
    """Coefficients over `TERMS` of the parameters a design adds by default, or None where they are no such polynomial.

    Raises UnknownDesign.
    """
    card = designs.get(design)

    def row(shape: Shape) -> tuple[list[int], int]:
        n, d, k = shape.n_layers, shape.d_model, shape.n_kv_heads * shape.head_dim
        return [1, n, d, n * d, d * d, n * d * d, d * k, n * d * k], card.extra_params(shape)

    small = [row(_shape(n, d, kv)) for n, d, kv in product((2, 3, 5), (8, 16, 24, 40), (1, 2, 4))]
    found = np.linalg.lstsq(np.array([r for r, _ in small], float), np.array([y for _, y in small], float), rcond=None)[
        0
    ]
    whole = [round(float(value)) for value in found]
    large = [row(_shape(n, d, kv)) for n, d, kv in product((2, 4, 33, 84), (512, 1216), (1, 2, 4))]
    if any(sum(c * v for c, v in zip(whole, r, strict=True)) != y for r, y in small + large):
        return None
    return {term: value for term, value in zip(TERMS, whole, strict=True) if value}


def _shape(n_layers: int, d_model: int, n_kv_heads: int) -> Shape:
    return Shape(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=4,
        n_kv_heads=n_kv_heads,
        d_ff=feed_forward_width(d_model),
        vocab_size=97,
    )


def suite_data(suite: Suite) -> dict[str, Any]:
    """What the page needs of a suite: the budget, what is held, and its shapes."""
    return {
        "name": suite.name,
        "title": suite.title,
        "hold": suite.hold,
        "budget": suite.target,
        "base_layers": suite.base.n_layers,
        "vocab_size": suite.base.vocab_size,
        "n_heads": suite.base.n_heads,
        "n_kv_heads": suite.base.n_kv_heads,
        "ffn": suite.ffn,
        "shapes": sorted(
            (s.model_dump(include={"n_layers", "d_model", "d_ff"}) for s in suite.shapes), key=lambda s: s["n_layers"]
        ),
    }


def design_data(names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Label and extra-parameter polynomial of each design whose count is such a polynomial."""
    fitted = {name: extra_polynomial(name) for name in (designs.names() if names is None else names)}
    return [
        {"design": n, "label": designs.get(n).label, "extra": extra} for n, extra in fitted.items() if extra is not None
    ]


def shape_explorer(
    suite: str = "main-400m", *, n_layers: int | None = None, design: str = "pre_ln", live: bool | None = None
) -> Figure:
    """Layers drawn to scale, with a slider over depth at a fixed budget.

    Starts from `suite` (a key of `SUITES`; the page offers them all, or the reader's own numbers) at `n_layers` (None:
    the suite's base shape) and `design`. `live` shows ipywidgets instead of the HTML where a front end has both; None
    means in JupyterLab only. The widget's `value` is the solved Shape, or None. Raises KeyError for an unknown suite
    and UnknownDesign.
    """
    if suite not in SUITES:
        raise KeyError(f"unknown suite {suite!r}; allowed: {', '.join(SUITES)}")
    designs.get(design)
    start = {
        "suite": suite,
        "n_layers": SUITES[suite].base.n_layers if n_layers is None else n_layers,
        "design": design,
    }
    data = {
        "start": start,
        "suites": [suite_data(s) for s in SUITES.values()],
        "designs": design_data(),
        "ffn_rules": [[rule, _RULES[rule]] for rule in get_args(FeedForwardRule)],
        "tolerance": TOLERANCE,
    }

    def make() -> Any:
        from depthbench.interactive.live import ShapeWidget

        return ShapeWidget(data)

    return Figure(
        "shapes",
        data,
        label="shape explorer: layers drawn to scale at a fixed parameter budget",
        fallback="This figure solves for other budgets when scripts may run; the printed one shows the suite's shapes.",
        live=make,
        is_live=in_lab() if live is None else live,
    )
