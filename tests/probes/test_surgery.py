"""Layers are left out and swapped as asked, and everything is as before afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from depthbench import probes
from depthbench.probes.views import walk

from .common import DESIGNS, SHAPE, exchanged, random_model, tokens

IDS = tokens(2, 6)
BRANCHES = r"(attention|feed_forward|attention_norm|feed_forward_norm)\."


@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_swapped_branches_are_exchanged_weights(design: str) -> None:
    model = random_model(design)
    before = model(IDS)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        with probes.swapped(model, a, b):
            swapped = model(IDS)
        torch.testing.assert_close(swapped, exchanged(model, a, b, BRANCHES)(IDS), rtol=1e-10, atol=1e-12)
        assert (swapped - before).abs().max() > 1e-3
    assert torch.equal(model(IDS), before)


@pytest.mark.parametrize("design", ["pre_ln", "sandwich_ln", "deepnorm", "keel", "hc", "mhc", "moda", "depth_mup"])
@torch.no_grad()
def test_the_reference_swap_exchanges_what_both_layers_have(design: str) -> None:
    model = random_model(design)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        hand = exchanged(model, a, b, "")(IDS)
        with probes.swapped(model, a, b, "reference"):
            torch.testing.assert_close(model(IDS), hand, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_the_factor_of_lns_travels_in_the_reference_only() -> None:
    model = random_model("lns")
    block = model.blocks["2"]
    with probes.swapped(model, 0, 2):
        assert block.attention_residual.factor == pytest.approx(3**-0.5)
    with probes.swapped(model, 0, 2, "reference"):
        assert block.attention_residual.factor == block.feed_forward_residual.factor == 1.0
    assert block.attention_residual.factor == pytest.approx(3**-0.5)


@torch.no_grad()
def test_the_right_mixers_of_sources_travel_in_the_reference() -> None:
    model = random_model("full_attnres")
    hand = exchanged(model, 0, 2, BRANCHES)
    right, end = hand.blocks["1"].attention_residual, hand.residual_ends
    right.mix, end.mix = end.mix, right.mix
    with probes.swapped(model, 0, 2, "reference"):
        torch.testing.assert_close(model(IDS), hand(IDS), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("swap", ["branches", "reference"])
@pytest.mark.parametrize("design", DESIGNS)
@torch.no_grad()
def test_swapping_a_layer_with_itself_or_its_like_changes_nothing(design: str, swap: Any) -> None:
    model = random_model(design)
    before = model(IDS)
    with probes.swapped(model, 1, 1, swap):
        assert torch.equal(model(IDS), before)
    like, other = (dict(model.blocks[str(l)].state_dict()) for l in (1, 2))
    names = {"branches": ("attention.", "feed_forward.", "attention_norm.", "feed_forward_norm.")}.get(swap, ("",))
    model.blocks["2"].load_state_dict(
        {name: like[name] if name.startswith(names) and name in like else other[name] for name in other}
    )
    if swap == "reference" and design in ("lns", "full_attnres", "block_attnres"):
        return  # a factor, or a mixer outside the block, travels
    before = model(IDS)
    with probes.swapped(model, 1, 2, swap):
        assert torch.equal(model(IDS), before)


@torch.no_grad()
def test_an_error_inside_leaves_the_model_whole() -> None:
    model = random_model("hc")
    before, names = model(IDS), list(model.state_dict())
    for surgery in (probes.skipped(model, 1), probes.swapped(model, 0, 2)):
        with pytest.raises(KeyboardInterrupt), surgery:
            raise KeyboardInterrupt
        assert torch.equal(model(IDS), before) and list(model.state_dict()) == names
    with probes.skipped(model, 1), pytest.raises(RuntimeError, match="left out already"), probes.skipped(model, 0):
        pass
    assert torch.equal(model(IDS), before)


@torch.no_grad()
def test_a_skipped_model_gives_the_loss_of_labels() -> None:
    model = random_model("pre_ln")
    with probes.skipped(model, 0):
        out = model(IDS, labels=IDS)
        expected = torch.nn.functional.cross_entropy(model(IDS).flatten(0, 1), IDS.flatten())
    torch.testing.assert_close(out.loss.double(), expected, rtol=1e-5, atol=0)  # OLMo-core's loss is in float32


def test_wrong_words_are_refused() -> None:
    model: Any = random_model("pre_ln")
    with pytest.raises(ValueError, match="layers 0 to 2"), probes.skipped(model, SHAPE.n_layers):
        pass
    with pytest.raises(ValueError, match="'silent' or 'reference', got 'zero'"), probes.skipped(model, 0, "zero"):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError, match="'branches' or 'reference'"), probes.swapped(model, 0, 1, "all"):  # type: ignore[arg-type]
        pass
    assert walk(model).n_layers == 3
