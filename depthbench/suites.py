"""Which shapes does the paper train, and with what recipe? Its suites, each from one base shape, and the pocket suite.

A suite is a base shape and a list of depths: the base's size is the budget, and `shapes.solve` finds the width for each
depth (arXiv 2609.32534, Table 3; a test holds the derived shapes to the published ones, to the unit).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from depthbench.shapes import BASELINE, FeedForwardRule, Shape, feed_forward_width, shapes_frame, solve


@dataclass(frozen=True)
class Suite:
    """A budget, the shapes that hold it, and the recipe they share.

    `recipe` holds TrainSpec fields (`seq_len`, `global_batch_tokens`, `n_tokens`, `data`) and grids in the plural
    (`lrs`, `seeds`); `lrs_by_design` overrides `lrs`, `lrs_from` names the suite whose sweep chooses the rates, and
    `best_lr` is the published best rate of each design, where the paper gives it. `n_tokens` is the same for every
    shape of the suite. `shapes` hold the budget as Pre-LN. The paper trains every design at these; with `counts_design`
    a design gets the width that holds the budget with its own parameters counted.
    """

    name: str
    title: str
    hold: Literal["total", "backbone"]
    base: Shape
    shapes: tuple[Shape, ...]
    recipe: dict[str, Any]
    note: str = ""
    ffn: FeedForwardRule = "8d/3"
    counts_design: bool = False

    @property
    def target(self) -> int:
        """The budget in parameters: the base shape's total or backbone, as Pre-LN."""
        return self.base.size(self.hold)

    @property
    def n_steps(self) -> int:
        """Optimizer steps of every run, whatever its shape."""
        return round(self.recipe["n_tokens"] / self.recipe["global_batch_tokens"])

    def lrs(self, design: str) -> tuple[float, ...]:
        """The learning rates the sweep tries for a design."""
        grid: tuple[float, ...] = self.recipe.get("lrs_by_design", {}).get(design, self.recipe["lrs"])
        return grid

    def shape(self, n_layers: int, design: str = BASELINE, **options: Any) -> Shape:
        """The suite's shape of that depth for a design; raises KeyError naming the depths there are."""
        for shape in self.shapes:
            if shape.n_layers == n_layers:
                return self.solve(n_layers, design, options) if self.counts_design and design != BASELINE else shape
        depths = ", ".join(str(shape.n_layers) for shape in self.shapes)
        raise KeyError(f"suite {self.name!r} has no shape of {n_layers} layers; it has {depths}")

    def solve(
        self, n_layers: int, design: str = BASELINE, options: Mapping[str, Any] | None = None, **heads: Any
    ) -> Shape:
        """The shape of any depth at the suite's budget, by its feed-forward rule and heads (or those given)."""
        own = {key: getattr(self.base, key) for key in ("n_heads", "n_kv_heads", "vocab_size")} | heads
        budget: dict[str, Any] = {self.hold: float(self.target)}
        return solve(**budget, n_layers=n_layers, ffn=self.ffn, design=design, options=options, **own)

    def to_frame(self, design: str = "pre_ln", **options: Any) -> pd.DataFrame:
        """The suite's shapes as a table, counted under `design`; `relative_gap` is against the suite's budget."""
        return shapes_frame(self.shapes, self.target, self.hold, design, **options)


def _suite(
    name: str,
    title: str,
    recipe: dict[str, Any],
    *,
    depths: tuple[int, ...],
    n_layers: int,
    d_model: int,
    hold: Literal["total", "backbone"] = "total",
    n_heads: int = 16,
    n_kv_heads: int | None = None,
    vocab_size: int = 50280,
    ffn: FeedForwardRule = "8d/3",
    tokens_per_param: int | None = None,
    note: str = "",
    counts_design: bool = False,
) -> Suite:
    base = Shape(
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads or n_heads,
        d_ff=feed_forward_width(d_model, ffn),
        vocab_size=vocab_size,
    )
    if tokens_per_param is not None:
        recipe = recipe | {"n_tokens": tokens_per_param * base.num_params().total}
    bare = Suite(name, title, hold, base, (), recipe, note, ffn, counts_design)
    return replace(bare, shapes=tuple(bare.solve(depth) for depth in depths))


def _paper(n_steps: int, **more: Any) -> dict[str, Any]:
    """The paper's recipe (its training section): 512 sequences of 2048 tokens a step; one run a point."""
    return {
        "seq_len": 2048,
        "global_batch_tokens": 2**20,
        "n_tokens": n_steps * 2**20,
        "lrs": (5e-4, 1e-3, 2e-3, 5e-3),
        "lrs_by_design": {"lns": (2e-3, 5e-3, 1e-2, 2e-2)},
        "seeds": (0,),
        "data": "fineweb-edu",
    } | more


def _pocket(**more: Any) -> dict[str, Any]:
    """Our recipe on a CPU: the paper's optimiser and schedule, short windows, and a grid of rates to choose from."""
    return {
        "seq_len": 256,
        "global_batch_tokens": 2048,
        "lrs": (2.5e-3, 5e-3, 1e-2),
        "lrs_by_design": {"lns": (5e-3, 1e-2, 2e-2)},
        "seeds": (0, 1, 2),
        "data": "packages-512",
    } | more


# Best rate of each design at 400M, the paper's Table 4. `published` has the same with its source; a test compares them.
_BEST_LR_400M = {
    "pre_ln": 2e-3,
    "sandwich_ln": 2e-3,
    "lns": 1e-2,
    "deepnorm": 1e-3,
    "keel": 2e-3,
    "hc": 2e-3,
    "mhc": 2e-3,
    "full_attnres": 2e-3,
    "block_attnres": 2e-3,
    "moda": 2e-3,
}
_BASE_400M: dict[str, Any] = {"n_layers": 24, "d_model": 1024}
_BASE_POCKET: dict[str, Any] = {
    "depths": (2, 4, 8, 16),
    "n_layers": 4,
    "d_model": 56,
    "n_heads": 4,
    "vocab_size": 512,
    "ffn": "fill",
}
_HALF, _DOUBLE = {"d_model": 40, "depths": (2, 4, 8)}, {"d_model": 80, "depths": (4, 8, 16)}

_ALL = (
    _suite(
        "main-400m",
        "Main benchmark, about 400M parameters in all",
        _paper(7600, best_lr=dict(_BEST_LR_400M)),
        depths=(16, 20, 24, 28, 32, 42, 70),
        **_BASE_400M,
        note="The two deepest shapes were published for HC and Full AttnRes only.",
    ),
    _suite(
        "iso-backbone-300m",
        "Iso-backbone control, about 300M parameters in the blocks",
        _paper(7600, best_lr=dict(_BEST_LR_400M)),
        depths=(16, 24, 32, 42, 70, 84),
        hold="backbone",
        **_BASE_400M,
        note="Uses the 400M recipe. best_lr is the optimum at 400M total; the paper gives none of this suite's own.",
    ),
    _suite("scale-200m", "Scaling ladder, 200M", _paper(3800), depths=(24, 18, 12), n_layers=18, d_model=768),
    _suite("scale-300m", "Scaling ladder, 300M", _paper(5700), depths=(28, 21, 14), n_layers=21, d_model=896),
    _suite(
        "scale-400m",
        "Scaling ladder, 400M",
        _paper(7600, best_lr=dict(_BEST_LR_400M)),
        depths=(32, 24, 16),
        **_BASE_400M,
        note="Three shapes of main-400m; the same runs serve both.",
    ),
    _suite("scale-500m", "Scaling ladder, 500M", _paper(9500), depths=(34, 26, 17), n_layers=26, d_model=1120),
    _suite(
        "validate-1.6b",
        "Validation at 1.6B, grouped-query attention",
        _paper(30_400, lrs=(5e-4,), lrs_by_design={}),
        depths=(28, 40, 54),
        n_layers=28,
        d_model=2048,
        n_kv_heads=8,
        ffn="3d",
        note="The base is the shape of Qwen3-1.7B; published for Pre-LN, HC and Full AttnRes.",
    ),
    _suite(
        "pocket",
        "Pocket suite: the same question on a CPU",
        _pocket(),
        tokens_per_param=20,
        counts_design=True,
        note="Ours, not the paper's. Each design's own parameters are counted, and the feed-forward width takes up "
        "what steps of the width leave, so that the budget is held within 1 % at every depth. With fewer than four "
        "heads, seeds spread wider (results/README.md).",
        **_BASE_POCKET,
    ),
    _suite(
        "pocket-iso-backbone",
        "Pocket control: the same backbone, whatever embeddings and design add",
        _pocket(lrs_from="pocket"),
        hold="backbone",
        tokens_per_param=20,
        note="Ours. Every design at Pre-LN's widths, as in the paper's control.",
        **_BASE_POCKET,
    ),
    _suite(
        "pocket-half",
        "Pocket suite at about half the parameters",
        _pocket(lrs_from="pocket"),
        tokens_per_param=20,
        counts_design=True,
        **_BASE_POCKET | _HALF,
    ),
    _suite(
        "pocket-double",
        "Pocket suite at about twice the parameters",
        _pocket(lrs_from="pocket"),
        tokens_per_param=20,
        counts_design=True,
        **_BASE_POCKET | _DOUBLE,
    ),
)


class _Suites(dict[str, Suite]):
    def __missing__(self, name: str) -> Suite:
        raise KeyError(f"no suite {name!r}; the suites are {', '.join(self)}")


SUITES: dict[str, Suite] = _Suites({suite.name: suite for suite in _ALL})


def shape_like(
    suite: str, n_layers: int, design: str = "pre_ln", options: dict[str, Any] | None = None, **given: Any
) -> Shape:
    """A shape in the manner of a suite: its own at a depth it has, else solved for its budget; what is `given` wins.

    A `given` of None counts as not given. With `d_model` given and `d_ff` not, d_ff follows the suite's feed-forward
    rule. Raises ValueError for an unknown suite, InfeasibleShape where no width holds the budget.
    """
    if suite not in SUITES:
        raise ValueError(f"unknown suite {suite!r}; suites: {', '.join(SUITES)}")
    found, given = SUITES[suite], {key: value for key, value in given.items() if value is not None}
    heads = {key: given.get(key, getattr(found.base, key)) for key in ("n_heads", "vocab_size")}
    heads["n_kv_heads"] = given.get("n_kv_heads", found.base.n_kv_heads if "n_heads" not in given else heads["n_heads"])
    if "d_model" in given:
        width = given["d_model"]
        d_ff = given.get("d_ff", feed_forward_width(width, found.ffn))
        return Shape(n_layers=n_layers, d_model=width, d_ff=d_ff, **heads)
    same_heads = not given.keys() & heads.keys()
    if same_heads and n_layers in [shape.n_layers for shape in found.shapes]:
        shape = found.shape(n_layers, design, **(options or {}))
    else:
        shape = found.solve(n_layers, design, options, **heads)
    return Shape(**{**shape.model_dump(), "d_ff": given["d_ff"]}) if "d_ff" in given else shape
