"""What did the paper publish? Every number with its source, and where its own statements disagree.

The numbers (arXiv 2609.32534: paper, project page, reference code) lie in `published.json`, as printed or as read off a
figure. They are plotted hollow and never put on one axis with measured ones: the corpora differ.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

_KEYS = ("design", "n_layers", "d_model")


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(files("depthbench").joinpath("published.json").read_text(encoding="ascii"))
    return data


def _entry(name: str) -> dict[str, Any]:
    if name not in names():
        raise KeyError(f"no published table {name!r}; the tables are {', '.join(names())}")
    entry: dict[str, Any] = _data()["tables"][name]
    return entry


def names() -> tuple[str, ...]:
    """Names of the published tables."""
    return tuple(_data()["tables"])


def about(name: str) -> dict[str, Any]:
    """Title, unit, source, uncertainty and note of a table; raises KeyError naming the tables there are."""
    return {key: text for key, text in _entry(name).items() if key not in ("columns", "rows")}


def table(name: str) -> pd.DataFrame:
    """A published table, one row a number; numbers that were not published have no row.

    Columns: `design` (registry name), `n_layers`, `d_model` (missing where the number has none), those of the table,
    `aspect_ratio` where the shape is known, `value` (unit: `about(name)["unit"]`), `source`, `uncertainty` (0.001 where
    read off a figure, "approx" where printed as about, None where printed), `note`.
    Raises KeyError naming the tables there are.
    """
    entry = _entry(name)
    frame = pd.DataFrame(entry["rows"], columns=entry["columns"])
    for key in _KEYS:
        if key not in frame:
            frame[key] = None
    for key in ("n_layers", "d_model"):
        frame[key] = frame[key].astype("Int64" if frame[key].isna().any() else "int64")
    own = [column for column in frame if column not in (*_KEYS, "value")]
    frame = frame[[*_KEYS, *own, "value"]]
    if frame["d_model"].notna().any():
        frame.insert(3, "aspect_ratio", (frame["d_model"] / frame["n_layers"]).astype(float))
    told = {key: pd.Series([entry[key]] * len(frame), dtype=object) for key in ("source", "uncertainty", "note")}
    return frame.assign(**told)


def value(name: str, **where: Any) -> float:
    """The one number of a table that `where` singles out, e.g. value("val_loss_400m", design="hc", n_layers=32).

    Raises KeyError for a table or column there is not, and LookupError where none or several rows fit.
    """
    frame = table(name)
    if unknown := sorted(set(where) - set(frame.columns)):
        raise KeyError(f"table {name!r} has no column {', '.join(unknown)}; it has {', '.join(frame.columns)}")
    for column, wanted in where.items():
        frame = frame[frame[column] == wanted]
    if len(frame) != 1:
        raise LookupError(f"{len(frame)} rows of table {name!r} fit {where}; give columns that single out one number")
    return float(frame["value"].iloc[0])


def optimal_lr(design: str) -> float:
    """The paper's best learning rate of a design at 400M (Table 4); raises LookupError for one it does not have."""
    return value("optimal_lr_400m", design=design)


def labels() -> dict[str, str]:
    """How the paper writes each design, by registry name, in its order."""
    return dict(_data()["labels"])


def contradictions() -> pd.DataFrame:
    """Where the published statements differ, one row a case.

    Columns: `id`, `kind` (prose-vs-chart, prose-vs-table, prose-vs-code), `design`, `n_layers` (missing where the case
    has none), `says` and `shows` in words, `said_value` and `shown_value` where a side is a number, `chart_gap` how far
    a chart's readings are from what the prose says, and `within_reading`: that is no more than a chart can be read to,
    so the case contradicts nothing.
    """
    frame = pd.DataFrame(_data()["contradictions"])
    frame = frame.astype({"n_layers": "Int64", "said_value": float, "shown_value": float, "chart_gap": float})
    return frame.assign(within_reading=frame["chart_gap"].round(9) <= _entry("val_loss_400m")["uncertainty"])
