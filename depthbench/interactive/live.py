"""The ipywidgets twins of the live figures: the same data in a running notebook, with the answer as a Python value."""

from __future__ import annotations

import html
from typing import Any

import ipywidgets as widgets

from depthbench.interactive import picture
from depthbench.shapes import Shape, solve


class ShapeWidget(widgets.VBox):
    """The shape explorer with live controls; `value` is the solved Shape, or None where there is none."""

    def __init__(self, data: dict[str, Any]):
        self.data = data
        self.suites = {suite["name"]: suite for suite in data["suites"]}
        self.suite = widgets.Dropdown(
            options=[(s["title"], s["name"]) for s in data["suites"]] + [("own numbers", "")], description="start from"
        )
        self.hold = widgets.Dropdown(
            options=[("total parameters", "total"), ("backbone only", "backbone")], description="held fixed"
        )
        self.budget = widgets.BoundedFloatText(min=1e-3, max=1e6, step=1, description="millions")
        self.vocab = widgets.BoundedIntText(min=1, max=10_000_000, description="vocabulary")
        self.heads = widgets.BoundedIntText(min=1, max=512, description="heads")
        self.kv_heads = widgets.BoundedIntText(min=1, max=512, description="kv heads")
        self.ffn = widgets.Dropdown(
            options=[(text, rule) for rule, text in data["ffn_rules"]], description="feed-forward"
        )
        self.design = widgets.Dropdown(
            options=[(d["label"], d["design"]) for d in data["designs"]], description="design"
        )
        self.depth = widgets.IntSlider(min=1, max=128, description="layers", layout=widgets.Layout(width="95%"))
        self.words, self.drawing = widgets.HTML(), widgets.HTML()
        self.value: Shape | None = None
        numbers = (self.hold, self.budget, self.vocab, self.heads, self.kv_heads, self.ffn)
        self._loading = True
        self.suite.value, self.design.value = data["start"]["suite"], data["start"]["design"]
        self._load(self.suites[self.suite.value])
        self.depth.value = data["start"]["n_layers"]
        self._loading = False
        self.suite.observe(self._start, "value")
        for control in numbers:
            control.observe(self._own, "value")
        for control in (self.design, self.depth):
            control.observe(self._update, "value")
        grid = widgets.GridBox(
            [self.suite, *numbers, self.design],
            layout=widgets.Layout(grid_template_columns="repeat(auto-fill, minmax(310px, 1fr))"),
        )
        super().__init__([grid, self.depth, self.drawing, self.words])
        self._update()

    def _load(self, suite: dict[str, Any]) -> None:
        self.hold.value, self.ffn.value, self.budget.value = suite["hold"], suite["ffn"], suite["budget"] / 1e6
        self.vocab.value, self.heads.value, self.kv_heads.value = (
            suite["vocab_size"],
            suite["n_heads"],
            suite["n_kv_heads"],
        )

    def _start(self, change: Any) -> None:
        if self.suite.value:
            self._loading = True
            self._load(self.suites[self.suite.value])
            self.depth.value = self.suites[self.suite.value]["base_layers"]
            self._loading = False
            self._update()

    def _own(self, change: Any) -> None:
        if not self._loading:
            self.suite.value = ""
            self._update()

    def _update(self, change: Any = None) -> None:
        if self._loading:
            return
        target = round(self.budget.value * 1e6)
        self.value = None
        try:
            self.value = solve(
                **{self.hold.value: target},
                n_layers=self.depth.value,
                n_heads=self.heads.value,
                n_kv_heads=self.kv_heads.value,
                vocab_size=self.vocab.value,
                ffn=self.ffn.value,
                design=self.design.value,
                tolerance=self.data["tolerance"],
            )
        except ValueError as error:
            self.drawing.value, self.words.value = "", f"<p>No shape: {html.escape(str(error))}</p>"
            return
        self.drawing.value = picture.layers(self.value, self.depth.max)
        self.words.value = picture.shape_table(self.value, self.design.value, self.hold.value, target)


class LossWidget(widgets.VBox):
    """The loss explorer with live controls: which published numbers, and which design stands out."""

    def __init__(self, data: dict[str, Any]):
        self.data = data
        self.view = widgets.ToggleButtons(
            options=[(v["label"], i) for i, v in enumerate(data["views"])], description="published"
        )
        names = [(d["label"], d["design"]) for d in data["designs"]]
        self.highlight = widgets.Dropdown(options=[("all designs", ""), *names], description="highlight")
        self.charts, self.words = widgets.HTML(), widgets.HTML()
        for control in (self.view, self.highlight):
            control.observe(self._update, "value")
        super().__init__([self.view, self.highlight, self.charts, self.words])
        self._update()

    def _update(self, change: Any = None) -> None:
        panels = [self.data["views"][self.view.value], *self.data["measured"]]
        pinned = self.highlight.value
        self.charts.value = "".join(picture.loss_panel(panel, pinned) for panel in panels)
        points = [p["text"] for panel in panels for s in panel["series"] if s["design"] == pinned for p in s["points"]]
        self.words.value = (
            "".join(f"<div>{html.escape(text)}</div>" for text in points)
            or "<div>Choose a design to read its numbers.</div>"
        )
