"""How is each design drawn, the same in every figure? One colour, marker and dash a design, and how a figure starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from depthbench import designs, published

# Lightness (CIE L*) goes up in steps of 6 from 10 to 64, so that greyscale tells all ten apart; hues were searched so
# that every pair stays apart under each of the three colour-vision deficiencies.
PALETTE: Mapping[str, str] = MappingProxyType(
    {
        "pre_ln": "#1b1b1b",
        "sandwich_ln": "#490192",
        "lns": "#7f1ee8",
        "deepnorm": "#3b2209",
        "keel": "#10494d",
        "hc": "#e9068a",
        "mhc": "#a57ef8",
        "full_attnres": "#017d4c",
        "block_attnres": "#978804",
        "moda": "#545302",
    }
)
MARKERS: Mapping[str, str] = MappingProxyType(
    dict(zip(PALETTE, ("o", "v", "^", "<", ">", "s", "D", "p", "h", "X"), strict=True))
)
LINESTYLES: Mapping[str, Any] = MappingProxyType(
    {
        "pre_ln": "-",
        "sandwich_ln": (0, (5, 1)),
        "lns": (0, (3, 1, 1, 1)),
        "deepnorm": (0, (1, 1)),
        "keel": (0, (5, 3)),
        "hc": "-",
        "mhc": (0, (7, 2)),
        "full_attnres": "-",
        "block_attnres": (0, (7, 2, 1, 2)),
        "moda": (0, (3, 2)),
    }
)
_SPARE = (("#8c564b", "P", (0, (1, 2))), ("#5f6b7a", "*", (0, (4, 1, 1, 1, 1, 1))), ("#a0522d", "d", (0, (2, 2))))


@dataclass(frozen=True)
class Style:
    """Colour, marker, dash and label of one design, the same in every figure."""

    color: str
    marker: str
    linestyle: Any
    label: str


def style(design: str) -> Style:
    """How a design is drawn; registered designs beyond the ten take spare styles in registry order.

    Raises UnknownDesign for a name that is neither the paper's nor registered.
    """
    if design in PALETTE:
        return Style(PALETTE[design], MARKERS[design], LINESTYLES[design], published.labels()[design])
    label = designs.get(design).label
    color, marker, dash = _SPARE[
        [name for name in designs.names(extras=True) if name not in PALETTE].index(design) % len(_SPARE)
    ]
    return Style(color, marker, dash, label)


def alt_text(figure: Figure) -> str:
    """What a figure of this module shows, for readers who cannot see it; raises ValueError where it has no words."""
    text = figure.get_label()
    if not isinstance(text, str) or not text:
        raise ValueError("this figure has no alternative text; figures of depthbench.figures carry one")
    return text


def new_figure(panels: int, figsize: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure with `panels` axes in a row, `figsize` in inches, that pyplot does not keep."""
    with sns.axes_style("whitegrid"):
        figure, axes = plt.subplots(1, panels, figsize=figsize, layout="constrained", squeeze=False)
    plt.close(figure)  # pyplot forgets it, so that a notebook shows it once and none piles up
    return figure, list(axes[0])


def need(frame: pd.DataFrame, columns: Iterable[str], what: str) -> None:
    """Raise ValueError, in words, for a frame without these columns or without rows; `what` is its name."""
    if missing := [column for column in columns if column not in frame]:
        raise ValueError(f"{what} lacks the columns {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}")
    if frame.empty:
        raise ValueError(f"{what} has no rows; nothing to draw")
