"""Execute a text notebook by papermill: checked parameters, no half-finished file under the final name.

Run as `python -m launch.notebooks SOURCE TARGET PARAMETERS.json` it executes one notebook in a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import papermill
from nbformat import NotebookNode

from depthbench.paths import NOTEBOOKS


class PageFailed(ValueError):
    """A cell of a notebook failed."""


def read(source: Path) -> NotebookNode:
    """The notebook of a md:myst file, with the kernel papermill needs."""
    if not source.exists():
        names = ", ".join(sorted(path.stem for path in NOTEBOOKS.glob("*.md")))
        raise FileNotFoundError(f"no notebook {source}; there are: {names}")
    notebook = jupytext.read(source)
    notebook.metadata.setdefault("kernelspec", {"display_name": "Python 3", "language": "python", "name": "python3"})
    return notebook


def check_parameters(notebook: NotebookNode, parameters: Mapping[str, Any], name: str) -> None:
    """Raise ValueError for a parameter the notebook lacks: papermill only warns and runs on with the defaults."""
    allowed = papermill.inspect_notebook(notebook)
    if unknown := sorted(set(parameters) - set(allowed)):
        raise ValueError(f"{name} has no parameter {', '.join(unknown)}; its parameters: {', '.join(allowed)}")


def execute(
    source: Path,
    target: Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    timeout: int | None = None,
    first: str | None = None,
) -> Path:
    """Execute `source` with `parameters` and write the result to `target`; `first` is code to run before all cells.

    While it runs, and if it fails, the notebook stands beside it as `.part.ipynb`. Raises PageFailed for a failing cell
    and ValueError for an unknown parameter.
    """
    notebook = read(source)
    check_parameters(notebook, parameters or {}, source.name)
    if first is not None:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(first))
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part.ipynb")
    # MPLBACKEND=agg would silently drop every figure.
    os.environ.pop("MPLBACKEND", None)
    try:
        papermill.execute_notebook(
            notebook,
            part,
            parameters=dict(parameters or {}),
            kernel_name="python3",
            cwd=NOTEBOOKS,
            progress_bar=False,
            execution_timeout=timeout,
        )
    except papermill.PapermillExecutionError as error:
        raise PageFailed(f"{source.name}: {error.ename}: {error.evalue} (as far as it came: {part})") from error
    part.replace(target)
    return target


def main(arguments: list[str]) -> int:
    """Execute one notebook; exit code 1 and the failing cell's message if it fails."""
    source, target, parameters = arguments
    try:
        execute(Path(source), Path(target), json.loads(Path(parameters).read_text()))
    except PageFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
