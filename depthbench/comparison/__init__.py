"""What a grid of runs says and how sure it is: cells over seeds, gaps, slopes in depth, agreement with the paper.

One question a file. Nothing here reads a file or draws: frames in (`load_runs`), frames out.
"""

from depthbench.comparison.agreement import agreement, published_slope
from depthbench.comparison.cells import cells, recipes
from depthbench.comparison.gaps import across_depth, against_baseline, verdict
from depthbench.comparison.slopes import slopes, slopes_against

__all__ = [
    "across_depth", "against_baseline", "agreement", "cells", "published_slope", "recipes", "slopes", "slopes_against",
    "verdict",
]  # fmt: skip
