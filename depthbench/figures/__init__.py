"""How does each result look? Frame in, matplotlib figure out, with one colour, marker and dash for each design.

One subject a file. Published numbers are hollow and measured ones filled, in separate panels: their corpora and scales
differ. No function here reads a file, sets a global style or shows a window; each figure carries its alternative text.
"""

from depthbench.figures.costs import loss_vs_cost, moved_vs_flops, prefill_and_cache, prefill_measured
from depthbench.figures.losses import at_best_lr, band_half_width, loss_vs_shape
from depthbench.figures.probes_curves import contributions, late_survival, pruning_and_lens, running_sum, transport
from depthbench.figures.probes_maps import (
    angular_map,
    causal_map,
    depth_mixing_map,
    no_results,
    path_weight_map,
    permutation_map,
)
from depthbench.figures.run import training_curve
from depthbench.figures.shapes import shapes_to_scale
from depthbench.figures.styles import LINESTYLES, MARKERS, PALETTE, Style, alt_text, style

__all__ = [
    "LINESTYLES",
    "MARKERS",
    "PALETTE",
    "Style",
    "alt_text",
    "angular_map",
    "at_best_lr",
    "band_half_width",
    "causal_map",
    "contributions",
    "depth_mixing_map",
    "late_survival",
    "loss_vs_cost",
    "loss_vs_shape",
    "moved_vs_flops",
    "no_results",
    "path_weight_map",
    "permutation_map",
    "prefill_and_cache",
    "prefill_measured",
    "pruning_and_lens",
    "running_sum",
    "shapes_to_scale",
    "style",
    "training_curve",
    "transport",
]
