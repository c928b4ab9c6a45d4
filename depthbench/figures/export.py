"""What did a figure draw, as numbers? Read off its artists, so that no figure has to keep a copy of its data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import Collection, PathCollection, PolyCollection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

CSV = "text/csv"
COLUMNS = ["panel", "title", "kind", "series", "x", "y", "value"]


def drawn(figure: Figure) -> pd.DataFrame:
    """The points of a figure, one row each, in data units.

    `panel` counts the axes from 0, `series` is the legend's label or a running number, `kind` is line, points, band
    (the outline of a filled area), bar (x and y of its corner, value its height) or map (value at column x, row y).
    """
    rows: list[pd.DataFrame] = []
    for panel, ax in enumerate(figure.axes):
        for kind, series, points in _artists(ax):
            rows.append(pd.DataFrame(points).assign(panel=panel, title=ax.get_title(), kind=kind, series=series))
    return pd.concat(rows, ignore_index=True).reindex(columns=COLUMNS) if rows else pd.DataFrame(columns=COLUMNS)


def _artists(ax: Axes) -> list[tuple[str, str, dict[str, Any]]]:
    out: list[tuple[str, str, dict[str, Any]]] = []
    for line in ax.get_lines():
        x, y = line.get_xdata(), line.get_ydata()
        if line.get_transform() == ax.transData and len(np.atleast_1d(x)):
            out.append(("line", str(line.get_label()), {"x": np.atleast_1d(x), "y": np.atleast_1d(y)}))
    for collection in ax.collections:
        if found := _collection(collection):
            out.append((found[0], str(collection.get_label()), found[1]))
    for image in ax.images:
        array: np.ndarray = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
        if array.ndim == 2:
            y, x = np.indices(array.shape)
            out.append(("map", str(image.get_label()), {"x": x.ravel(), "y": y.ravel(), "value": array.ravel()}))
    for patch in ax.patches:
        if isinstance(patch, Rectangle):
            box = {"x": [patch.get_x()], "y": [patch.get_y()], "value": [patch.get_height()]}
            out.append(("bar", str(patch.get_label()), box))
    return out


def _collection(collection: Collection) -> tuple[str, dict[str, Any]] | None:
    if isinstance(collection, QuadMesh):
        array: np.ndarray = np.ma.filled(np.ma.asarray(collection.get_array()), np.nan)
        y, x = np.indices(array.shape)
        return "map", {"x": x.ravel(), "y": y.ravel(), "value": array.ravel()}
    if isinstance(collection, PathCollection):
        offsets: np.ndarray = np.ma.filled(np.ma.asarray(collection.get_offsets(), dtype=float), np.nan)
        return ("points", {"x": offsets[:, 0], "y": offsets[:, 1]}) if len(offsets) else None
    if isinstance(collection, PolyCollection):
        outlines = [path.vertices for path in collection.get_paths()]
        return ("band", dict(zip("xy", np.concatenate(outlines).T, strict=True))) if outlines else None
    return None


def offer_exports() -> None:
    """In a kernel: show every figure as SVG and PDF too, and carry its data as CSV in the same output."""
    from IPython.core.getipython import get_ipython
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    shell = get_ipython()
    if shell is None or shell.display_formatter is None:
        raise RuntimeError("offer_exports works in an IPython kernel only; in a script use figure.savefig and drawn")
    set_matplotlib_formats("svg", "pdf", "png")
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    class CsvFormatter(BaseFormatter):
        format_type = Unicode(CSV)
        print_method = ObjectName("_repr_csv_")

    formatter = CsvFormatter(parent=shell.display_formatter)
    formatter.for_type(Figure, lambda figure: drawn(figure).to_csv(index=False))
    shell.display_formatter.formatters[CSV] = formatter
