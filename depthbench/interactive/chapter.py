"""What chapters say around their cells: numbers for the prose, tables, and the library's own lines."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from IPython.display import HTML, Markdown

from depthbench.shapes import Shape


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


def unshared(design_names: Sequence[str], shape: Shape) -> pd.DataFrame:
    """What each design changes beside the residual, one row a design: read off its class and off built models.

    Columns: `norm`, `attention`, `start` (Pre-LN's fresh weights times what, by matrix), `no_decay` (globs of its own
    parameters), `optimizer` (factors on the optimiser's settings); "-" where the design keeps what all share.
    """
    from depthbench import designs
    from depthbench.designs.base import Design
    from depthbench.model import build_model

    plain = {key: weight.detach().double() for key, weight in build_model("pre_ln", shape).named_parameters()}
    rows = []
    for name in design_names:
        design = designs.configure(name)
        scaled: dict[str, list[str]] = {}
        for key, weight in build_model(name, shape).named_parameters():
            if key in plain and key.startswith("blocks.0.") and weight.dim() > 1:
                factor = float((weight.detach().double() * plain[key]).sum() / plain[key].square().sum())
                if abs(factor - 1) > 1e-3:
                    scaled.setdefault(f"{factor:.2f}", []).append(key.split(".")[-2])
        rows.append(
            {
                "design": designs.get(name).label,
                "norm": {"rms": "-", "layer": "LayerNorm"}[design.block_norm],
                "attention": "-" if type(design).attention is Design.attention else "its own",
                "start": "; ".join(f"{', '.join(names)} times {factor}" for factor, names in scaled.items()) or "-",
                "no_decay": ", ".join(glob.removeprefix("*") for glob in design.no_decay) or "-",
                "optimizer": "; ".join(f"{glob}: {to}" for glob, to in design.optimizer_scales(shape.n_layers).items())
                or "-",
            }
        )
    return pd.DataFrame(rows)


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
