"""What chapters say around their cells: numbers for the prose, tables, and the library's own lines."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

import pandas as pd
from IPython.display import HTML, Markdown


def say(**values: Any) -> None:
    """Give numbers to the text around the cells, where {glue:text}`name:format` picks them up."""
    from myst_nb import glue

    for name, value in values.items():
        glue(name, value.item() if hasattr(value, "item") else value, display=False)


def show_source(thing: Any, first: str = "", last: str = "") -> Markdown:
    """The library's own source of `thing`, from the line that starts with `first` to the one that starts with `last`.

    Raises ValueError where a mark is not found, so that a page cannot go on showing lines that are gone.
    """
    lines = inspect.getsource(thing).splitlines()
    starts = [i for i, line in enumerate(lines) if line.strip().startswith(first)] if first else [0]
    ends = [i for i, line in enumerate(lines) if line.strip().startswith(last)] if last else [len(lines) - 1]
    if not starts or not ends or ends[-1] < starts[0]:
        raise ValueError(
            f"no lines of {thing.__qualname__} from {first!r} to {last!r}; choose marks that its source has"
        )
    return Markdown("```python\n" + textwrap.dedent("\n".join(lines[starts[0] : ends[-1] + 1])) + "\n```")


def show_table(frame: pd.DataFrame, *, formats: Mapping[str, str] | None = None, words: bool = False) -> HTML:
    """A frame as a table of the book; `formats` gives columns a format such as ",d" or ".3f", `words` is for
    columns of text.

    Missing numbers are shown as "-", a frame without rows as a sentence. Raises KeyError for a format of no column.
    """
    if frame.empty:
        return HTML("<p>No rows yet.</p>")
    shown = frame.copy()
    for column, form in (formats or {}).items():
        shown[column] = [format(value, form) if pd.notna(value) else "-" for value in frame[column]]
    body = shown.to_html(index=False, border=0, justify="unset", escape=True)
    return HTML(f'<div class="db-table{" db-words" if words else ""}" tabindex="0">{body}</div>')
