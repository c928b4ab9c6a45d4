"""Where things are: every path of the project, resolved from the package and never from the working folder.

`DEPTHBENCH_ROOT` overrides the checkout, so that an installed wheel can be pointed at one.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("DEPTHBENCH_ROOT", PACKAGE.parent)).resolve()
BUILD = ROOT / "build"
DATA = BUILD / "data"
RUNS = BUILD / "runs"
NOTEBOOKS = ROOT / "notebooks"
RESULTS = ROOT / "results"
LOCAL_RESULTS = BUILD / "results"

# What a chapter's output depends on besides its own text.
_WATCHED = (
    "depthbench/**/*.py",
    "depthbench/**/*.json",
    "depthbench/**/*.js",
    "depthbench/**/*.css",
    "results/**/*",
    "build/results/**/*",
    "requirements.txt",
)


def fingerprint(root: Path = ROOT) -> str:
    """Hash of the library, the results and the pins: the key of the book's execution cache.

    Jupyter-cache looks at a notebook's own cells only, so without this a changed library would leave old numbers on the
    page.
    """
    digest = hashlib.sha256()
    for pattern in _WATCHED:
        for path in sorted(root.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
