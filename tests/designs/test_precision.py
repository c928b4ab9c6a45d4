"""With bf16 compute over float32 parameters a stream, a sum or a mixture is float32 in every design, as in Pre-LN."""

from __future__ import annotations

import pytest
import torch

import depthbench as db
from depthbench.designs.depth_mix import mix
from tests.designs.cases import SHAPE

IDS = torch.arange(18).view(2, 9) % SHAPE.vocab_size


def types_read(model: torch.nn.Module, autocast: bool) -> set[torch.dtype]:
    """The types of what each branch and the head read, in a training pass."""
    seen: list[torch.dtype] = []
    parts = [part for block in model.blocks.values() for part in (block.attention, block.feed_forward)]
    for part in (*parts, model.lm_head):
        part.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        model(IDS).float().square().mean().backward()
    assert len(seen) == 2 * SHAPE.n_layers + 1
    return set(seen)


@pytest.mark.parametrize("design", db.designs.names(extras=True))
def test_what_branches_read(design: str) -> None:
    assert types_read(db.build_model(design, SHAPE), autocast=True) == {torch.float32}
    assert types_read(db.build_model(design, SHAPE, dtype=torch.bfloat16), autocast=False) == {torch.bfloat16}


@pytest.mark.parametrize("block_size_sublayers", [1, 2])
def test_sources_stay_as_they_came_and_sums_do_not(block_size_sublayers: int) -> None:
    """Full AttnRes keeps bf16 outputs, exact and half the size; sums of a block are wide, so that none is rounded."""
    model = db.build_model("block_attnres", SHAPE, block_size_sublayers=block_size_sublayers)
    kept: list[tuple[torch.dtype, ...]] = []
    model.residual_ends.mix.register_forward_pre_hook(
        lambda module, args: kept.append(tuple(source.dtype for source in args[0] if source is not None))
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(IDS)
    embedding, *outputs = kept[0]
    assert embedding == torch.float32
    assert set(outputs) == {torch.bfloat16 if block_size_sublayers == 1 else torch.float32}


def test_a_mixture_is_as_wide_as_its_widest_source() -> None:
    wide, narrow = torch.randn(2, 3, 8), torch.randn(2, 3, 8).bfloat16()
    u = torch.randn(8)
    assert mix([wide, narrow], u, 1e-6).dtype == torch.float32
    assert mix([narrow, narrow], u, 1e-6).dtype == torch.bfloat16
    torch.testing.assert_close(mix([wide, narrow], u, 1e-6), mix([wide, narrow.float()], u, 1e-6), rtol=1e-6, atol=1e-6)
