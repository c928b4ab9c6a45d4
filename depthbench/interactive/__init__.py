"""Live figures: one object, shown as ipywidgets in JupyterLab and as plain HTML and JS in the static book.

Both draw the same data. The HTML needs no network and works from a file; a printed figure stands beside it in the book.
"""

from depthbench.interactive.explore_loss import loss_explorer
from depthbench.interactive.explore_shapes import shape_explorer
from depthbench.interactive.figure import Figure

__all__ = ["Figure", "loss_explorer", "shape_explorer"]
