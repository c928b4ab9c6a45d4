"""A design as a page of the book shows it: equation, facts and the library's own lines, all read off the registry."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from IPython.display import Markdown

from depthbench import designs
from depthbench.model import build_model
from depthbench.shapes import Shape

VERBS = ("read", "run", "write")
_SMALL = Shape(n_layers=3, d_model=16, n_heads=2, d_ff=16, vocab_size=16)  # built to see its classes


def facts(name: str, shape: Shape) -> dict[str, str]:
    """What a card says besides its equation, by title; `shape` is where extra parameters are counted."""
    card = designs.get(name)
    extra = card.extra_params(shape)
    rate = "not in the paper" if card.published_lr is None else f"{card.published_lr:g}"
    return {
        "family": card.family,
        "weights on the residual path": card.weight,
        "source": card.source + (f" (arXiv {card.arxiv})" if card.arxiv else ""),
        "best learning rate published": rate,
        f"own parameters at {shape.n_layers} layers of width {shape.d_model}": f"{extra:,}",
        "options": ", ".join(f"{key} = {value!r}" for key, value in card.options.items()) or "none",
    }


def lines(name: str) -> str:
    """The lines of the library that open, read, write and close in a design, without those that only set up."""
    model: Any = build_model(name, _SMALL)
    found_in = [c for block in model.blocks.values() for c in (block.attention_residual, block.feed_forward_residual)]
    connections = list(dict.fromkeys(map(type, found_in)))
    found = [(type(model.residual_ends), "open")]
    found += [(cls, verb) for cls in connections for verb in VERBS if verb != "run" or "run" in vars(cls)]
    found.append((type(model.residual_ends), "close"))
    shown: dict[Any, str] = {}
    for cls, verb in found:
        method = getattr(cls, verb)
        shown.setdefault(method, f"# {cls.__name__}\n{textwrap.dedent(inspect.getsource(method))}")
    return "\n".join(shown.values())


def design_card(name: str, shape: Shape) -> Markdown:
    """One design as Markdown: equation, facts, notes and its lines. Raises UnknownDesign."""
    card = designs.get(name)
    table = "\n".join(f"| {title} | {text} |" for title, text in facts(name, shape).items())
    notes = "\n".join(f"- {note}" for note in card.notes)
    parts = [f"$$\n{card.equation}\n$$", f"| | |\n|---|---|\n{table}", notes, f"```python\n{lines(name)}```"]
    return Markdown("\n\n".join(part for part in parts if part))
