"""Where the built book is, and a browser without a network to work it in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from depthbench.paths import ROOT

HTML = Path(os.environ.get("DEPTHBENCH_HTML", ROOT / "_build" / "html"))
CHROMIUM = os.environ.get("DEPTHBENCH_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def toc_pages() -> list[str]:
    """Pages of the table of contents, without suffix."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"], *(entry["file"] for part in toc["parts"] for entry in part["chapters"])]


@pytest.fixture(scope="session")
def html() -> Path:
    if not (HTML / "index.html").exists():
        pytest.skip(f"the book is not built at {HTML}; run `jupyter-book build . -W -n --keep-going`")
    return HTML


@pytest.fixture(scope="session")
def browser(html: Path) -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip(
            "no Chromium on the path (or in DEPTHBENCH_CHROMIUM): the live figures were not worked in a browser"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
