"""Sphinx extension of the book: outputs on a page belong to the library and the records of today.

Two holes of the stock tool-chain give a green build of a wrong book, and one setting of the environment gives
a green build of a book without figures. All three are closed here.
"""

from __future__ import annotations

import os
from typing import Any

from depthbench.paths import BUILD, fingerprint

# An inline backend makes `plt.show()` draw; agg, set from outside, makes it a silent no-op.
os.environ.pop("MPLBACKEND", None)


def set_cache(app: Any, config: Any) -> None:
    """Name the execution cache after the library, the records and the pins: the stock key is the cell text alone."""
    config.nb_execution_cache_path = str(BUILD / "jupyter_cache" / fingerprint())


def reread(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Read every notebook again: cheap with the cache, and a chapter that failed once fails each time."""
    return [doc for doc in env.found_docs if doc.startswith("notebooks/")]


def setup(app: Any) -> dict[str, Any]:
    """Connect both handlers."""
    app.connect("config-inited", set_cache, priority=1)
    app.connect("env-get-outdated", reread)
    return {"version": "1", "parallel_read_safe": True, "env_version": 1}
