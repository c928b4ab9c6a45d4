"""How does the loss move as a fixed budget goes from width to depth? The loss explorer (Figure 2, and our own runs).

Published numbers are hollow, measured ones filled, and the two never share an axis: other data, other sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from depthbench import figures, published
from depthbench.comparison import recipes
from depthbench.interactive.figure import Figure, in_lab


def _styled(name: str) -> dict[str, Any]:
    style = figures.style(name)
    dash = [] if isinstance(style.linestyle, str) else list(style.linestyle[1])
    return {"design": name, "label": style.label, "color": style.color, "marker": style.marker, "dash": dash}


def _rows(frame: pd.DataFrame) -> Iterable[Any]:
    return frame.itertuples(index=False)


def _in_order(names: Iterable[str]) -> list[str]:
    known = list(published.labels())
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


def _series(frame: pd.DataFrame, text: Any, joined: str) -> list[dict[str, Any]]:
    out = []
    for name in _in_order(frame["design"]):
        rows = frame[(frame["design"] == name) & frame[joined].notna()].sort_values("n_layers")
        points = [
            {
                "n_layers": int(row.n_layers),
                "d_model": int(row.d_model),
                "aspect_ratio": row.d_model / row.n_layers,
                "value": float(getattr(row, joined)),
                **text(_styled(name)["label"], row),
            }
            for row in _rows(rows)
        ]
        if points:
            out.append(_styled(name) | {"points": points})
    return out


def _published_point(label: str, row: Any) -> dict[str, Any]:
    wide = f"{label}, {int(row.n_layers)} layers of {int(row.d_model)}: {row.value:.3f}"
    read_off = isinstance(row.uncertainty, float)  # None where printed, a word where printed as about so much
    sure = f" +- {row.uncertainty:g}" if read_off else ""
    return {"band": row.uncertainty if read_off else 0.0, "text": f"{wide}{sure} nats, published ({row.source})."}


def _measured_point(label: str, row: Any) -> dict[str, Any]:
    banded = row.n > 1 and not math.isnan(row.half_width)
    spread = f"sd over {row.n} seeds {row.sd:.4f}" if row.n > 1 else "one seed: the spread over seeds is unknown"
    sure = f" +- {row.half_width:.4f}" if banded else ""
    rate = f"learning rate {row.lr:g}" + (f", best of {row.n_lrs}" if row.n_lrs > 1 else "")
    failed = f"; {row.n_failed} more failed" if row.n_failed else ""
    return {
        "band": float(row.half_width) if banded else 0.0,
        "text": (
            f"{label}, {int(row.n_layers)} layers of {int(row.d_model)}: {row.mean:.4f}{sure} nats, measured here; "
            f"{spread}; evaluation noise alone {row.se_eval:.4f}; {rate}{failed}; {', '.join(row.run_ids)}."
        ),
    }


def _published_view(label: str, frame: pd.DataFrame) -> dict[str, Any]:
    sources = "; ".join(dict.fromkeys(frame["source"]))
    return {
        "label": label,
        "title": f"Published: {label}",
        "origin": "published",
        "ylabel": "nats per token",
        "joined": True,
        "hint": "Hover over or tab to a marker to read it.",
        "empty": "Nothing was published here.",
        "notes": [f"Hollow: published, not measured here; the bar is how well it could be read. Source: {sources}."],
        "series": _series(frame, _published_point, "value"),
    }


def _measured_views(measured: pd.DataFrame | None, command: str) -> list[dict[str, Any]]:
    common = {
        "origin": "measured",
        "ylabel": "nats per token",
        "joined": True,
        "hint": "Hover over or tab to a marker to read it.",
    }
    empty = f"No rows yet. Make them: {command}"
    groups = [] if measured is None else recipes(measured)
    if not groups:
        return [common | {"title": "Measured here", "empty": empty, "notes": [], "series": []}]
    views = []
    for words, frame in groups:
        shown = frame[frame["best"]]
        shown = shown.assign(half_width=figures.band_half_width(shown))
        single = int((shown["n"] < 2).sum())
        notes = [
            "Filled: measured here. The wide bar, drawn from two seeds up, is the band of the printed figure: the mean "
            "plus or minus two standard errors, the seed variance pooled over a design's shapes."
        ]
        if single:
            notes.append(
                f"{single} of {len(shown)} cells rest on one seed: gaps between them cannot be told from seed noise."
            )
        views.append(
            common
            | {
                "title": f"Measured here: {words}",
                "empty": empty,
                "notes": notes,
                "series": _series(shown, _measured_point, "mean"),
            }
        )
    return views


def loss_explorer(
    tables: Mapping[str, pd.DataFrame],
    measured: pd.DataFrame | None = None,
    *,
    command: str = "python -m launch run pocket",
    live: bool | None = None,
) -> Figure:
    """Published curves to read point by point, and in a panel of their own the cells measured here.

    `tables` maps a label to a frame of `depthbench.published` (design, n_layers, d_model, value, uncertainty, source);
    `measured` is a frame of `cells`, shown at the best learning rate, one panel a recipe; without rows `command` says
    how to make them.
    `live` as in `shape_explorer`. Raises ValueError if there is nothing to show.
    """
    if not tables:
        raise ValueError(
            "no published table given; give at least one, such as {'validation loss': published.table('val_loss_400m')}"
        )
    views = [_published_view(label, frame) for label, frame in tables.items()]
    panels = _measured_views(measured, command)
    names = _in_order(series["design"] for view in views + panels for series in view["series"])
    data = {"designs": [_styled(name) for name in names], "views": views, "measured": panels}

    def make() -> Any:
        from depthbench.interactive.live import LossWidget

        return LossWidget(data)

    return Figure(
        "loss",
        data,
        label="loss explorer: loss over width-depth shapes, published and measured apart",
        fallback="This figure reads out single points when scripts may run; the printed figures show the losses.",
        live=make,
        is_live=in_lab() if live is None else live,
    )
