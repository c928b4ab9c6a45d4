"""A design's page shows what the registry holds and the lines that run."""

from __future__ import annotations

import pytest

import depthbench as db
from depthbench.interactive.cards import design_card, facts, lines

SHAPE = db.Shape(n_layers=3, d_model=24, n_heads=3, d_ff=32, vocab_size=31)


@pytest.mark.parametrize("design", db.designs.names(extras=True))
def test_a_card_is_the_registrys(design: str) -> None:
    card, text = db.designs.get(design), design_card(design, SHAPE).data
    assert card.equation in text and card.source in text and all(note in text for note in card.notes)
    assert all(f"{key} = {value!r}" in text for key, value in card.options.items())
    own = SHAPE.num_params(design).design
    assert facts(design, SHAPE)[f"own parameters at 3 layers of width {SHAPE.d_model}"] == f"{own:,}"
    code = lines(design)
    compile(code, design, "exec")  # the lines are whole functions
    assert [code.count(f"def {verb}(") > 0 for verb in ("open", "read", "write", "close")] == [True] * 4


def test_lines_of_another_design_are_other_lines() -> None:
    assert len({lines(design) for design in db.designs.names()}) >= 9
    assert "carry + y" in lines("pre_ln") and "slots" in lines("moda")


def test_an_unknown_design_is_said_in_words() -> None:
    with pytest.raises(db.designs.UnknownDesign, match="registered designs"):
        design_card("nope", SHAPE)
