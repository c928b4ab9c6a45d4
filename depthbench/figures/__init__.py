"""How does each result look? Frame in, matplotlib figure out, with one colour, marker and dash for each design.

One subject a file. Published numbers are hollow and measured ones filled, in separate panels: their corpora and scales
differ. No function here reads a file, sets a global style or shows a window; each figure carries its alternative text.
"""

from depthbench.figures.losses import at_best_lr, band_half_width, loss_vs_shape
from depthbench.figures.run import training_curve
from depthbench.figures.shapes import shapes_to_scale
from depthbench.figures.styles import LINESTYLES, MARKERS, PALETTE, Style, alt_text, style

__all__ = [
    "LINESTYLES",
    "MARKERS",
    "PALETTE",
    "Style",
    "alt_text",
    "at_best_lr",
    "band_half_width",
    "loss_vs_shape",
    "shapes_to_scale",
    "style",
    "training_curve",
]
