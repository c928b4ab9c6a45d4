"""Small SVG and HTML drawings for the ipywidgets twins, which cannot run the page's scripts."""

from __future__ import annotations

import html
import math
from typing import Any

from depthbench.shapes import Shape

_WIDTH, _HEIGHT = 640, 240
_TEXT = 'font-size="12" fill="currentColor"'


def _svg(body: list[str], label: str) -> str:
    frame = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" style="max-width:{_WIDTH}px"'
    return f'<svg {frame} role="img" aria-label="{html.escape(label)}">{"".join(body)}</svg>'


def layers(shape: Shape, max_layers: int) -> str:
    """Every layer of a shape to scale: attention as high as d_model (dark), feed-forward as high as d_ff (light)."""
    step, unit = (_WIDTH - 20) / max(max_layers, shape.n_layers), (_HEIGHT - 10) / max(shape.d_ff, 1)
    bars = []
    for layer in range(shape.n_layers):
        for half, (width, opacity) in enumerate(((shape.d_model, 1), (shape.d_ff, 0.45))):
            x, high = 10 + (layer + half / 2) * step, width * unit
            bars.append(
                f'<rect x="{x:.2f}" y="{_HEIGHT - high:.2f}" width="{max(0.8, step * 0.42):.2f}" height="{high:.2f}" '
                f'fill="#0a6e9c" fill-opacity="{opacity}"/>'
            )
    return _svg(bars, f"{shape.n_layers} layers, attention {shape.d_model} and feed-forward {shape.d_ff} high")


def shape_table(shape: Shape, design: str, hold: str, target: float) -> str:
    """The read-out of the shape explorer as an HTML table."""
    count = shape.num_params(design)
    gap = shape.size("total" if hold == "total" else "backbone", design) - target
    rows = {
        "d_model": f"{shape.d_model}",
        "d_ff": f"{shape.d_ff}",
        "head_dim": f"{shape.head_dim}",
        "d_model / n_layers": f"{shape.aspect_ratio:.2f}",
        "total": f"{count.total:,}",
        "backbone": f"{count.backbone:,} ({count.backbone / count.total:.1%})",
        "embedding": f"{count.embedding:,} ({count.embedding / count.total:.1%})",
        "design's own": f"{count.design:,}",
        "from the budget": f"{gap:+,.0f} ({gap / target:+.2%})",
    }
    return "<table>" + "".join(f"<tr><th>{key}</th><td>{value}</td></tr>" for key, value in rows.items()) + "</table>"


def loss_panel(panel: dict[str, Any], pinned: str) -> str:
    """One panel of the loss explorer: published markers hollow, measured ones filled, all but `pinned` faded."""
    points = [p for series in panel["series"] for p in series["points"]]
    title = f"<b>{html.escape(panel['title'])}</b>"
    if not points:
        return f"{title}<div>{html.escape(panel['empty'])}</div>"
    ratios = [math.log(p["aspect_ratio"]) for p in points]
    low, high = min(p["value"] - p["band"] for p in points), max(p["value"] + p["band"] for p in points)
    span, width = high - low or 0.02, max(ratios) - min(ratios) or 1.0

    def at(point: dict[str, Any]) -> tuple[float, float]:
        x = 60 + (_WIDTH - 90) * (max(ratios) - math.log(point["aspect_ratio"])) / width
        return x, 15 + (_HEIGHT - 55) * (high - point["value"]) / span

    body = [f'<text x="4" y="{y}" {_TEXT}>{value:.3f}</text>' for y, value in ((19, high), (_HEIGHT - 36, low))]
    for n_layers, point in {p["n_layers"]: p for p in points}.items():
        body.append(f'<text x="{at(point)[0]:.1f}" y="{_HEIGHT - 20}" text-anchor="middle" {_TEXT}>{n_layers}</text>')
    axis = "layers (deeper and narrower to the right)"
    body.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle" {_TEXT}>{axis}</text>')
    for series in panel["series"]:
        faded = 0.15 if pinned and series["design"] != pinned else 1
        color, places = series["color"], [at(p) for p in series["points"]]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        fill = "none" if panel["origin"] == "published" else color
        body.append(f'<g opacity="{faded}" stroke="{color}" stroke-width="1.6" fill="{fill}">')
        body.append(f'<polyline points="{path}" fill="none"/>')
        for (x, y), point in zip(places, series["points"], strict=True):
            half = (_HEIGHT - 55) * point["band"] / span
            body.append(f'<path d="M{x:.1f} {y - half:.1f}V{y + half:.1f}" stroke-width="7" stroke-opacity="0.25"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{html.escape(p["text"])}</title></circle>'
                 for (x, y), p in zip(places, series["points"], strict=True)]  # fmt: skip
        body.append("</g>")
    notes = "".join(f"<div>{html.escape(note)}</div>" for note in panel["notes"])
    return title + _svg(body, panel["title"]) + notes
