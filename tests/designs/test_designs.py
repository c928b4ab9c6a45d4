"""The registry of designs: names in the paper's order, cards, options, and configurations that survive JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

import depthbench as db
from depthbench import published
from depthbench.designs import UnknownDesign
from depthbench.designs.block_attn_res import block_size
from depthbench.model import model_config

from .cases import CASES, DESIGNS, SHAPE


def test_names_are_the_papers_in_its_order() -> None:
    paper = list(db.published.labels())
    assert list(db.designs.names()) == paper
    beside = set(DESIGNS) - set(db.designs.names())
    assert beside == {"depth_mup", "complete_p"}, "what stands beside the ten is in no default list"


@pytest.mark.parametrize("design", DESIGNS)
def test_cards_are_complete(design: str) -> None:
    card = db.designs.get(design)
    assert card.name == design
    assert card.equation and "$" not in card.equation
    if design in db.designs.names():
        assert card.label == db.published.labels()[design]
        assert card.published_lr == db.published.optimal_lr(design)
    else:
        assert card.published_lr is None
    assert card.source and card.arxiv
    dynamic = {"hc", "mhc", "full_attnres", "block_attnres", "moda"}
    assert (card.weight == "dynamic") == (design in dynamic)
    for option in card.options:
        assert option in " ".join(card.notes) or option == "n_streams", f"the card says nothing of {option}"


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_configuration_survives_json(design: str, options: dict[str, Any]) -> None:
    from olmo_core.config import Config

    config = model_config(design, SHAPE, seed=4, **options)
    again = Config.from_dict(json.loads(json.dumps(config.as_config_dict())))
    assert again == config
    assert type(again) is type(config)
    assert again.shape == SHAPE


def test_unknown_names_say_what_is_allowed() -> None:
    with pytest.raises(UnknownDesign, match="full_attnres"):
        db.build_model("resnet", SHAPE)
    with pytest.raises(ValueError, match="n_streams"):
        db.build_model("hc", SHAPE, streams=3)


@pytest.mark.parametrize(
    ("design", "options", "says"),
    [
        ("hc", {"n_streams": 0}, "at least 1"),
        ("hc", {"output_scaling": "halve"}, "divide"),
        ("mhc", {"n_streams": 0}, "at least 1"),
        ("mhc", {"output_scaling": "halve"}, "divide"),
        ("mhc", {"sinkhorn": "rows"}, "'paper' or 'reference'"),
        ("mhc", {"exit_reduce": "max"}, "'sum' or 'mean'"),
        ("mhc", {"init": "zero"}, "'gap8' or 'paper'"),
        ("deepnorm", {"norm": "batch"}, "'layer' or 'rms'"),
        ("keel", {"alpha": 0.0}, "positive"),
        ("block_attnres", {"block_size_sublayers": 0}, "at least 1"),
    ],
)
def test_impossible_options_say_what_is_allowed(design: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        db.designs.configure(design, **options)


def test_block_attnres_has_the_published_default_block() -> None:
    table = published.table("block_attnres")
    sizes = table[table["quantity"] == "block_size_sublayers"]
    assert [block_size(2 * n) for n in sizes["n_layers"]] == sizes["value"].to_list()
    assert block_size(2) == 1 and block_size(64, 3) == 3
