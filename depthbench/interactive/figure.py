"""A live figure that needs nothing but itself: HTML, CSS and JS in one cell output.

The same object is shown in JupyterLab, in the static book opened as a file, and in any viewer of notebooks. Its id is a
hash of its data, so that a chapter that is run twice gives the same output.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

# Which scripts a kind of figure needs, in order, and the function that draws it.
KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "shapes": (("core.js", "solve.js", "shapes.js"), "shapesFigure"),
    "loss": (("core.js", "loss.js"), "lossFigure"),
}


@cache
def source(name: str) -> str:
    """Text of a packaged JS or CSS file, e.g. `source("solve.js")`."""
    here = files("depthbench.interactive")
    folder = here / "js" if name.endswith(".js") else here
    return (folder / name).read_text(encoding="utf-8")


def in_lab() -> bool:
    """Whether a person looks on through JupyterLab: its server names the session of each kernel it starts."""
    return "JPY_SESSION_NAME" in os.environ


class Figure:
    """Self-contained HTML for Jupyter, with an optional ipywidgets twin.

    `kind` is a key of `KINDS`, `data` what its script draws (JSON, no NaN), `fallback` the sentence shown without
    JavaScript, and `live` a factory of the widget, called at most once and only when asked for. Raises KeyError for an
    unknown kind.
    """

    def __init__(
        self,
        kind: str,
        data: Mapping[str, Any],
        *,
        label: str,
        fallback: str,
        live: Callable[[], Any] | None = None,
        is_live: bool = False,
    ):
        self.scripts, self.mount = KINDS[kind]
        self.kind, self.label, self.fallback = kind, label, fallback
        self.payload = json.dumps(data, sort_keys=True, allow_nan=False, separators=(",", ":"))
        self.is_live = is_live and live is not None
        self._make, self._widget = live, None

    @property
    def id(self) -> str:
        """`db-` and ten hex digits of the data."""
        return "db-" + hashlib.sha256((self.kind + self.payload).encode()).hexdigest()[:10]

    @property
    def data(self) -> dict[str, Any]:
        """What the script draws, as plain data."""
        return json.loads(self.payload)

    @property
    def widget(self) -> Any:
        """The ipywidgets twin, made on first use."""
        if self._widget is None and self._make is not None:
            self._widget = self._make()
        return self._widget

    def html(self) -> str:
        """The figure as one HTML fragment."""
        script = "\n".join(source(name) for name in self.scripts)
        payload = self.payload.replace("<", "\\u003c")
        start = (
            f"for (const root of document.querySelectorAll(\"[data-figure='{self.id}']:not([data-ready])\")) {{"
            f'root.dataset.ready = "1"; root.querySelector(".db-fallback").remove(); '
            f'{self.mount}(root, JSON.parse(root.querySelector("script").textContent)); }}'
        )
        return (
            f"<style>{source('figure.css')}</style>"
            f'<div class="db-fig" data-figure="{self.id}" data-kind="{self.kind}" '
            f'role="group" aria-label="{html.escape(self.label)}">'
            f'<script type="application/json">{payload}</script>'
            f'<p class="db-fallback">{html.escape(self.fallback)}</p></div>'
            f"<script>(() => {{\n{script}\n{start}\n}})();</script>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/html": self.html(), "text/plain": f"<{self.label}>"}
        if self.is_live:
            view = self.widget._repr_mimebundle_()
            bundle |= {mime: content for mime, content in view.items() if "widget-view" in mime}
        return bundle
