"""Execute the book's chapters once by papermill and hand the outputs to the book: a page shows what was checked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import nbformat
import yaml
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from myst_nb.core.read import read_myst_markdown_notebook
from tqdm import tqdm

from depthbench.paths import BUILD, NOTEBOOKS, ROOT, fingerprint
from launch import notebooks

CHAPTERS = BUILD / "chapters"


def names() -> list[str]:
    """Chapters of the table of contents that are notebooks, in its order."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    return [Path(file).name for file in files if file.startswith("notebooks/")]


def execute_all(chosen: Sequence[str] = (), *, force: bool = False) -> list[Path]:
    """Execute chapters (default: all) as they stand; one with unchanged text, library and results is kept."""
    if unknown := sorted(set(chosen) - set(names())):
        raise ValueError(f"no chapter {', '.join(unknown)}; chapters: {', '.join(names())}")
    done = []
    state = fingerprint()
    for name in (bar := tqdm(chosen or names(), desc="chapters", unit="chapter")):
        bar.set_postfix_str(name)
        source = NOTEBOOKS / f"{name}.md"
        key = hashlib.sha256((source.read_text() + state).encode()).hexdigest()[:12]
        target = CHAPTERS / f"{name}.{key}.ipynb"
        if force or not target.exists():
            for old in CHAPTERS.glob(f"{name}.*.ipynb"):
                old.unlink()
            notebooks.execute(source, target, timeout=1200)
        seed_book(target, source, state)
        done.append(target)
    return done


def seed_book(executed: Path, source: Path, state: str) -> None:
    """Put an executed chapter in the book's cache under the cells the book will ask for.

    Jupyter-cache keys on the cells with their metadata as MyST-NB reads them, so papermill's own notebook would never
    match.
    """
    finished = nbformat.read(executed, 4)
    blank = read_myst_markdown_notebook(source.read_text(), path=str(source))
    have = [cell for cell in finished.cells if cell.cell_type == "code"]
    want = [cell for cell in blank.cells if cell.cell_type == "code"]
    if [cell.source.strip() for cell in have] != [cell.source.strip() for cell in want]:
        raise ValueError(f"{executed.name} is not a run of {source.name} with default parameters")
    for empty, full in zip(want, have, strict=True):
        empty.outputs, empty.execution_count = full.outputs, full.execution_count
    if "widgets" in finished.metadata:
        blank.metadata["widgets"] = finished.metadata["widgets"]
    cache = get_cache(str(BUILD / "jupyter_cache" / state))
    bundle = CacheBundleIn(blank, str(source), data={"execution_seconds": finished.metadata.papermill.duration})
    cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
