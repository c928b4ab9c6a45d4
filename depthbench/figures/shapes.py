"""What do shapes of one budget look like? Rectangles to one scale."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from depthbench.figures.styles import PALETTE, new_figure
from depthbench.shapes import Shape


def shapes_to_scale(shapes: Iterable[Shape]) -> Figure:
    """Shapes as rectangles, one scale for all: d_model wide and n_layers tall, with a line for every layer.

    Raises ValueError for no shapes.
    """
    drawn = list(shapes)
    if not drawn:
        raise ValueError("no shapes to draw; give at least one, such as SUITES['main-400m'].shapes")
    figure, (ax,) = new_figure(1, figsize=(8.0, 4.0))
    gap = 0.15 * max(shape.d_model for shape in drawn)
    tallest = max(shape.n_layers for shape in drawn)
    ticks, x = [], 0.0
    for shape in drawn:
        layers = [[(x, y), (x + shape.d_model, y)] for y in range(1, shape.n_layers)]
        ax.add_collection(LineCollection(layers, colors="white", linewidths=0.4, zorder=2))
        ax.add_patch(Rectangle((x, 0), shape.d_model, shape.n_layers, facecolor=PALETTE["keel"], zorder=1))
        ticks.append(x + shape.d_model / 2)
        ax.text(ticks[-1], shape.n_layers + 0.02 * tallest, f"{shape.n_layers} layers", ha="center", va="bottom")
        x += shape.d_model + gap
    ax.set_xticks(ticks, [f"d = {shape.d_model}\nd/L = {shape.aspect_ratio:.1f}" for shape in drawn])
    ax.set(xlim=(-gap, x), ylim=(0, 1.1 * tallest), ylabel="n_layers", xlabel="d_model (width of the rectangle)")
    ax.grid(False)
    said = "; ".join(f"{shape.n_layers} layers of width {shape.d_model}" for shape in drawn)
    figure.set_label(f"Rectangles to one scale, width d_model and height n_layers: {said}.")
    return figure
