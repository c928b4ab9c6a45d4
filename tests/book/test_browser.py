"""The live figures, worked in a real browser from file://: mouse and keyboard, light and dark, wide and narrow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import toc_pages

import depthbench as db

SETTINGS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
CONTRAST = """
([node, ground]) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const linear = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const pair = [luminance(getComputedStyle(node).color), luminance(getComputedStyle(ground).backgroundColor)].sort();
  return (pair[1] + 0.05) / (pair[0] + 0.05);
}
"""


class Opened:
    """A page with what it asked for and what it complained about."""

    def __init__(self, page: Any, width: int):
        self.page, self.width = page, width
        page.set_default_timeout(10_000)
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("requestfailed", lambda request: self.complaints.append(f"failed: {request.url}"))
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, path: Path) -> Opened:
        self.page.goto(path.as_uri(), wait_until="load")
        self.page.wait_for_timeout(300)
        return self

    def figure(self, kind: str) -> Any:
        found = self.page.locator(f"[data-kind='{kind}']")
        assert found.count() == 1
        found.scroll_into_view_if_needed()
        return found

    def settle(self) -> None:
        """Nothing was fetched from elsewhere, nothing complained, nothing sticks out sideways."""
        assert [url for url in self.asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert self.complaints == []
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.width


@pytest.fixture(params=SETTINGS, ids=[f"{scheme}-{width}" for scheme, width in SETTINGS])
def opened(browser: Any, request: pytest.FixtureRequest) -> Iterator[Opened]:
    scheme, width = request.param
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    yield Opened(context.new_page(), width)
    context.close()


def said(shape: db.Shape, design: str = "pre_ln") -> str:
    return f"{shape.n_layers} layers of width {shape.d_model}: {shape.num_params(design).total:,} parameters"


def contrast(figure: Any, node: Any) -> float:
    ratio: float = figure.page.evaluate(CONTRAST, [node.element_handle(), figure.element_handle()])
    return ratio


@pytest.mark.parametrize("name", toc_pages())
def test_every_page_opens_without_a_network_or_a_complaint(opened: Opened, html: Path, name: str) -> None:
    opened.open(html / f"{name}.html")
    if "math" in (html / f"{name}.html").read_text(encoding="utf-8").split("<article")[1]:
        opened.page.wait_for_function(
            "!document.querySelector('article .math') || document.querySelector('mjx-container svg')"
        )
    assert opened.page.locator("mjx-merror, [data-mjx-error]").count() == 0
    opened.settle()


def test_shape_explorer_by_mouse(opened: Opened, html: Path) -> None:
    figure = opened.open(html / "notebooks" / "shapes.html").figure("shapes")
    suite = db.SUITES["main-400m"]
    for shape in suite.shapes:
        figure.get_by_role("button", name=f"{shape.n_layers} x {shape.d_model}").click()
        readout = figure.locator("output").inner_text()
        assert said(shape) in readout and "This is the shape of the suite." in readout
        assert figure.locator("rect.db-attention").count() == figure.locator("rect.db-ffn").count() == shape.n_layers
        heights = [float(figure.locator(f"rect.{c}").first.get_attribute("height")) for c in ("db-attention", "db-ffn")]
        assert heights[1] / heights[0] == pytest.approx(shape.d_ff / shape.d_model, rel=1e-3)
    opened.settle()


def test_shape_explorer_by_keyboard(opened: Opened, html: Path) -> None:
    figure = opened.open(html / "notebooks" / "shapes.html").figure("shapes")
    suite = db.SUITES["main-400m"]
    slider = figure.locator("input[type=range]")
    slider.focus()
    opened.page.keyboard.press("ArrowRight")
    assert said(db.solve(total=suite.target, n_layers=suite.base.n_layers + 1)) in figure.locator("output").inner_text()
    figure.get_by_label("heads", exact=True).focus()
    opened.page.keyboard.press("Control+A")
    opened.page.keyboard.type("7")
    readout = figure.locator("output").inner_text()
    assert "No shape" in readout and "do not divide" in readout and figure.locator("rect.db-block").count() == 0
    assert figure.get_by_label("start from").input_value() == ""
    figure.get_by_label("key-value heads").fill("7")
    n_layers = int(slider.input_value())
    shape = db.solve(total=suite.target, n_layers=n_layers, n_heads=7)
    assert said(shape) in figure.locator("output").inner_text()
    opened.settle()


def test_shape_explorer_takes_every_preset_rule_and_design(opened: Opened, html: Path) -> None:
    figure = opened.open(html / "notebooks" / "shapes.html").figure("shapes")
    for name, suite in db.SUITES.items():
        figure.get_by_label("start from").select_option(name)
        assert said(suite.base) in figure.locator("output").inner_text(), name
    suite = db.SUITES["main-400m"]
    figure.get_by_label("start from").select_option("main-400m")
    for design in db.designs.names():
        figure.get_by_label("design", exact=True).select_option(design)
        assert (
            said(db.solve(total=suite.target, n_layers=24, design=design), design)
            in figure.locator("output").inner_text()
        )
    figure.get_by_label("held fixed").select_option("backbone")
    figure.get_by_label("budget, millions").fill("300")
    figure.get_by_label("feed-forward rule").select_option("3d")
    last = db.designs.names()[-1]
    shape = db.solve(backbone=300e6, n_layers=24, ffn="3d", design=last)
    assert said(shape, last) in figure.locator("output").inner_text()
    opened.settle()


def test_loss_explorer_by_mouse(opened: Opened, html: Path) -> None:
    figure = opened.open(html / "notebooks" / "main_results.html").figure("loss")
    panel = figure.locator(".db-panel").first
    point = panel.locator("[data-design=hc] .db-point").last
    point.hover()
    readout = panel.locator("output").inner_text()
    assert re.search(r"HC, 70 layers of 640: 2\.682 \+- 0\.001 nats, published \(.*Figure 2", readout)
    groups = panel.locator("g.db-series").count()
    point.click()
    assert panel.locator("g.db-dim").count() == groups - 1
    assert figure.get_by_role("button", name="HC", exact=True).get_attribute("aria-pressed") == "true"
    figure.get_by_role("button", name="HC", exact=True).click()
    assert panel.locator("g.db-dim").count() == 0
    figure.get_by_role("button", name="at a fixed backbone").click()
    assert "fixed backbone" in figure.locator(".db-panel").first.locator(".db-title").inner_text()
    opened.settle()


def test_loss_explorer_by_keyboard(opened: Opened, html: Path) -> None:
    figure = opened.open(html / "notebooks" / "main_results.html").figure("loss")
    keyboard = opened.page.keyboard
    figure.get_by_role("button", name="MoDA (Pre-LN)").focus()
    keyboard.press("Space")
    assert figure.locator(".db-panel").first.locator("g.db-dim").count() == 9
    keyboard.press("Space")
    keyboard.press("Tab")  # the last design button, then the first chart: one stop for all its points
    readout = figure.locator(".db-panel").first.locator("output")
    assert "Pre-LN, 16 layers of 1216: 2.759" in readout.inner_text()
    keyboard.press("ArrowRight")
    keyboard.press("ArrowRight")
    assert "Pre-LN, 24 layers of 1024: 2.765" in readout.inner_text()
    keyboard.press("ArrowDown")
    assert "24 layers of 1024" in readout.inner_text() and "Sandwich-LN" in readout.inner_text()
    keyboard.press("Enter")
    assert figure.get_by_role("button", name="Sandwich-LN").get_attribute("aria-pressed") == "true"
    keyboard.press("Escape")
    assert figure.locator("g.db-dim").count() == 0
    opened.settle()


def test_published_is_hollow_measured_is_filled_and_they_share_no_axis(opened: Opened, html: Path) -> None:
    figure = opened.open(html / "notebooks" / "main_results.html").figure("loss")
    ground = figure.evaluate("node => getComputedStyle(node).backgroundColor")
    fill = "node => [getComputedStyle(node).fill, getComputedStyle(node).stroke]"
    hollow = figure.locator("svg.db-published .db-mark").first.evaluate(fill)
    assert hollow[0] == ground != hollow[1]
    assert figure.locator(".db-panel").count() >= 2
    assert figure.locator(".db-panel:has(svg.db-published) svg.db-measured").count() == 0
    if figure.locator("svg.db-measured .db-mark").count():
        filled = figure.locator("svg.db-measured .db-mark").first.evaluate(fill)
        assert filled[0] == filled[1] != ground
    else:
        assert "python -m launch run" in figure.inner_text()


def test_text_and_marks_stand_out_from_their_ground(opened: Opened, html: Path) -> None:
    for name, kind in (("shapes", "shapes"), ("main_results", "loss")):
        figure = opened.open(html / "notebooks" / f"{name}.html").figure(kind)
        for node in figure.locator("output, label, .db-note, .db-title, dt").all():
            assert contrast(figure, node) >= 4.5, node.inner_text()
        for node in figure.locator("g.db-series").all():
            # 3:1 for marks (WCAG 1.4.11); mHC's colour on white is at 2.8, and its diamond and label carry it too.
            assert contrast(figure, node) >= 3, node.get_attribute("data-design")
        for node in figure.locator("svg text").all()[:3]:
            assert node.evaluate("node => parseFloat(getComputedStyle(node).fontSize)") >= 11


def test_motion_is_left_out_for_those_who_ask(opened: Opened, html: Path) -> None:
    figure = opened.open(html / "notebooks" / "main_results.html").figure("loss")
    assert figure.locator("g.db-series").first.evaluate("node => getComputedStyle(node).transitionDuration") == "0s"


def test_without_scripts_a_sentence_and_the_printed_figure_stay(browser: Any, html: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for name in ("shapes", "main_results"):
        page.goto((html / "notebooks" / f"{name}.html").as_uri())
        assert page.locator(".db-fallback").is_visible()
        assert page.locator("figure img").first.is_visible()
    context.close()
