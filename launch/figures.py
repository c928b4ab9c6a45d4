"""Execute chapters on other rows and export every figure as SVG and PDF, with the data behind it as CSV."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import papermill
import yaml
from nbformat import NotebookNode
from tqdm import tqdm

from depthbench.figures.export import CSV
from depthbench.paths import BUILD, NOTEBOOKS
from launch import chapters, notebooks

FIGURES = BUILD / "figures"
FORMATS = {"image/svg+xml": "svg", "application/pdf": "pdf", CSV: "csv"}
_HOOK = "from depthbench.figures.export import offer_exports\n\noffer_exports()"


def parse(pairs: Sequence[str]) -> dict[str, Any]:
    """`name=value` pairs, values read as YAML as papermill's own -p does; raises ValueError for one without '='."""
    out = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"-p takes name=value, not {pair!r}; for example -p n_tokens=3661824")
        out[name] = yaml.safe_load(value)
    return out


def export_all(
    chosen: Sequence[str], parameters: Mapping[str, Any], suite: str | None = None, target: Path = FIGURES
) -> Iterator[Path]:
    """Execute chapters (default: all) with these parameters and yield the files written, under `target`/CHAPTER.

    `suite` goes to the chapters that have such a parameter. A parameter must belong to every chapter named. Raises
    ValueError for an unknown chapter or parameter.
    """
    if unknown := sorted(set(chosen) - set(chapters.names())):
        raise ValueError(f"no chapter {', '.join(unknown)}; chapters: {', '.join(chapters.names())}")
    given = {}
    for name in chosen or chapters.names():
        source = NOTEBOOKS / f"{name}.md"
        notebook = notebooks.read(source)
        own = dict(parameters)
        if suite is not None and "suite" in papermill.inspect_notebook(notebook):
            own["suite"] = suite
        notebooks.check_parameters(notebook, own, source.name)  # all of them, before any is executed
        given[source] = own
    for source, own in (bar := tqdm(given.items(), desc="figures", unit="chapter")):
        bar.set_postfix_str(source.stem)
        folder = target / source.stem
        executed = notebooks.execute(source, folder / "executed.ipynb", own, timeout=1200, first=_HOOK)
        yield from write(nbformat.read(executed, 4), folder)


def write(executed: NotebookNode, folder: Path) -> Iterator[Path]:
    """Write the figures in a notebook's outputs, named by their label in the book or counted."""
    number = 0
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "application/pdf" not in data:
                continue
            number += 1
            label = cell.metadata.get("mystnb", {}).get("figure", {}).get("name", f"figure-{number}")
            for mime, suffix in FORMATS.items():
                if mime in data:
                    path = folder / f"{label}.{suffix}"
                    path.write_bytes(base64.b64decode(data[mime]) if suffix == "pdf" else data[mime].encode())
                    yield path
