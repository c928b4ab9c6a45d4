"""Refuse a notebook parameter that does not exist: papermill only logs it and runs on with the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def refuse_unknown(namespace: Mapping[str, Any], known: Mapping[str, Any], hidden: Mapping[str, Any]) -> None:
    """Raise ValueError for a name that stands in a notebook's namespace and was not declared.

    Called right after the parameters with `globals()`, the annotations of the parameters cell, and the names IPython
    keeps for itself (`get_ipython().user_ns_hidden`).
    """
    given = {name for name in namespace if not name.startswith("_") and name not in hidden}
    if unknown := sorted(given - set(known) - {"refuse_unknown"}):
        raise ValueError(f"no parameter {', '.join(unknown)}; the parameters are {', '.join(known)}")
