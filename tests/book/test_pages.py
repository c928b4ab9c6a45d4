"""The built pages hold what the sources promise, link only to what exists, and load nothing from elsewhere."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup, Tag
from conftest import HTML, toc_pages

import depthbench as db
from depthbench.paths import ROOT

PAGES = toc_pages()
CHAPTERS = [page for page in PAGES if page.startswith("notebooks/")]
GENERATED = {"genindex.html", "search.html", "index.html"}
MATHJAX_SHA256 = "d4295dc33744836935c1399feece5159577b34c5c8ffb9f1c6324cd82e03a882"


@cache
def soup(name: str) -> BeautifulSoup:
    return BeautifulSoup((HTML / name).read_text(encoding="utf-8"), "html.parser")


def page(name: str) -> BeautifulSoup:
    return soup(f"{name}.html")


def source(name: str) -> str:
    return (ROOT / f"{name}.md").read_text(encoding="utf-8")


def all_pages() -> list[str]:
    paths = (path.relative_to(HTML).as_posix() for path in HTML.rglob("*.html"))
    return sorted(path for path in paths if not path.startswith("_"))


def test_every_page_of_the_contents_is_built_and_no_other(html: Path) -> None:
    assert set(all_pages()) == {f"{name}.html" for name in PAGES} | GENERATED
    assert len(CHAPTERS) >= 2


@pytest.mark.parametrize("name", [f"{name}.html" for name in PAGES] + sorted(GENERATED))
def test_no_page_loads_anything_from_elsewhere(html: Path, name: str) -> None:
    text = (HTML / name).read_text(encoding="utf-8")
    loads = [
        tag.get(attribute)
        for tag in soup(name).find_all(
            ["script", "img", "iframe", "source", "link", "video", "audio", "embed", "object"]
        )
        for attribute in ("src", "href", "data")
        if tag.get(attribute)
        and not (tag.name == "link" and set(tag.get("rel") or []) <= {"canonical", "next", "prev", "search", "index"})
    ]
    assert loads or name == "index.html", "a page without any script or style: the test looks at the wrong thing"
    assert [load for load in loads if re.match(r"(https?:)?//", str(load))] == []
    assert not re.search(
        r"@import|url\(\s*['\"]?(https?:)?//|import\(['\"]https?:|jsdelivr|cdnjs|unpkg|googleapis", text
    )


def test_no_style_sheet_loads_anything_from_elsewhere(html: Path) -> None:
    sheets = list((HTML / "_static").rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert not re.search(
            r"url\(\s*['\"]?(https?:)?//|@import\s+['\"]?(https?:)?//",
            sheet.read_text(encoding="utf-8", errors="replace"),
        ), sheet


@pytest.mark.parametrize("name", PAGES)
def test_every_internal_link_and_anchor_exists(html: Path, name: str) -> None:
    here = (HTML / f"{name}.html").parent
    broken, seen = [], 0
    for tag in page(name).find_all(["a", "img", "script", "link"]):
        target = tag.get("href") or tag.get("src")
        if not target or urlsplit(str(target)).scheme or str(target).startswith("//"):
            continue
        parts = urlsplit(str(target))
        path = (here / unquote(parts.path)).resolve() if parts.path else HTML / f"{name}.html"
        seen += 1
        if not path.exists():
            broken.append(target)
        elif parts.fragment and path.suffix == ".html":
            relative = path.relative_to(HTML.resolve() if parts.path else HTML).as_posix()
            if not soup(relative).find(id=unquote(parts.fragment)) and parts.fragment != "search-input":
                broken.append(target)
    assert seen > 10 and broken == []


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_figure_of_a_chapter_is_a_picture_with_a_number_and_words(html: Path, name: str) -> None:
    labels = re.findall(r"^    name: (fig-[\w-]+)$", source(name), re.MULTILINE)
    assert labels, f"{name} has no numbered figure"
    for label in labels:
        figure = page(name).find(id=label)
        assert isinstance(figure, Tag), label
        image = figure.find("img")
        assert isinstance(image, Tag), f"{label}: no picture (is MPLBACKEND set?)"
        assert (
            "_images/" in str(image["src"])
            and ((HTML / f"{name}.html").parent / str(image["src"])).resolve().stat().st_size > 3000
        )
        assert len(str(image.get("alt", ""))) > 40, f"{label}: no alternative text"
        number = figure.find(class_="caption-number")
        assert number and re.match(r"Fig\. \d+\.\d+", number.get_text())


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_equation_citation_and_solution_of_a_chapter_is_there(html: Path, name: str) -> None:
    equations = re.findall(r"^:label: (eq-[\w-]+)$", source(name), re.MULTILINE)
    assert equations
    for label in equations:
        assert page(name).find(id=f"equation-{label}"), label
    bibliography = {str(tag["id"]) for tag in page("book/bibliography").find_all(id=re.compile(r"^id\d+$"))}
    cited = {str(a["href"]).split("#")[1] for a in page(name).find_all("a", href=re.compile(r"bibliography\.html#"))}
    keys = {key for group in re.findall(r"\{cite:[pt]\}`([^`]+)`", source(name)) for key in group.split(",")}
    assert len(cited) == len(keys) > 0 and cited <= bibliography
    exercises = page(name).find_all("div", class_="exercise")
    solutions = page(name).find_all("div", class_="solution")
    assert len(exercises) == len(solutions) > 0
    assert all("dropdown" in solution["class"] for solution in solutions), "an answer is in plain sight"


@pytest.mark.parametrize("name", PAGES)
def test_numbers_reached_the_prose_and_nothing_failed(html: Path, name: str) -> None:
    article = page(name).find("article")
    assert isinstance(article, Tag)
    text = article.get_text()
    for trace in ("np.float64", "{glue", "{numref}", "{eq}", "{cite", "Traceback", "<Figure size", "[?]", "nan "):
        assert trace not in text, trace
    assert not article.find_all(class_=re.compile("traceback|system-message"))
    assert not list((HTML / "reports").rglob(f"{Path(name).name}.err.log")) if (HTML / "reports").exists() else True


def test_bibliography_holds_every_entry_once(html: Path) -> None:
    entries = re.findall(r"^@\w+\{", (ROOT / "book" / "references.bib").read_text(encoding="utf-8"), re.MULTILINE)
    text = page("book/bibliography").get_text()
    assert len(page("book/bibliography").find_all("div", class_="citation")) == len(entries) >= 12
    for arxiv in ("2609.32534", "2409.19606", "2512.24880", "2603.15031", "2603.15619", "2601.19895", "2502.05795"):
        assert arxiv in text


@pytest.mark.parametrize(("name", "kind"), [("notebooks/shapes", "shapes"), ("notebooks/main_results", "loss")])
def test_live_figures_are_in_their_pages_with_a_sentence_for_no_script(html: Path, name: str, kind: str) -> None:
    (figure,) = page(name).find_all(attrs={"data-kind": kind})
    assert len(figure.find(class_="db-fallback").get_text()) > 40
    assert figure["aria-label"] and figure.find("script", type="application/json")


def test_pages_stay_light(html: Path) -> None:
    for name in PAGES:
        assert (HTML / f"{name}.html").stat().st_size < 350_000, name
    for image in (HTML / "_images").iterdir():
        assert image.stat().st_size < 400_000, image


def test_mathjax_is_the_pinned_file_with_its_licence(html: Path) -> None:
    folder = HTML / "_static" / "vendor" / "mathjax"
    assert hashlib.sha256((folder / "tex-svg.js").read_bytes()).hexdigest() == MATHJAX_SHA256
    assert "Apache License" in (folder / "LICENSE").read_text(encoding="utf-8")
    assert any(
        "vendor/mathjax/tex-svg.js" in str(tag.get("src")) for tag in page("notebooks/shapes").find_all("script")
    )


def test_sources_are_text_only() -> None:
    assert not list((ROOT / "notebooks").glob("*.ipynb"))
    for name in PAGES:
        assert source(name).isascii(), name


def test_the_sizes_that_the_first_page_tells_are_those_of_the_rows(html: Path) -> None:
    rows, paper = db.load_runs("committed"), db.SUITES["main-400m"]
    rows = rows[(rows["suite"] == "pocket") & (rows["status"] == "complete")]
    rows = rows[rows["n_tokens"].astype(int) == round(db.SUITES["pocket"].n_steps * 2048)]  # the main grid's
    parameters = paper.base.num_params().total / rows["params_total"].astype(float)
    tokens = paper.recipe["n_tokens"] / rows["n_tokens"].astype(float)
    assert len(rows) and set(parameters.round(-3)) == {2000} and set(tokens.round(-3)) == {2000}
    told = " ".join(page("book/index").get_text().split())
    assert "about two thousand times smaller than" in told and "in parameters and, in the main grid, in tokens" in told


def test_verdicts_come_with_their_half_width_and_rule(html: Path) -> None:
    text = " ".join(page("notebooks/main_results").get_text().split())
    for words in (
        "95 % half-width",
        "Welch and Satterthwaite",
        "seed variance pooled over the shapes",
        "--tokens-per-param",
    ):
        assert words in text, words
