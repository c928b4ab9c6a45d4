"""The walk is the model; the parts of a read sum to it; a skip means what it says, in every design."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from depthbench import designs, probes
from depthbench.designs.base import Card
from depthbench.designs.pre_ln import PreLN, PreLNConnection
from depthbench.probes.paths import read_parts
from depthbench.probes.tap import branch_outputs
from depthbench.probes.views import walk

from .common import CASES, QUIET, SHAPE, connections, random_model, tokens, without, zeroed

IDS = tokens(3, 6)
TRANSPORTED = ("pre_ln", "sandwich_ln", "lns", "deepnorm", "keel", "hc", "mhc", "depth_mup", "complete_p")
# Designs of which a layer can be taken out and leave a model of the same design.
LAYER_LESS: list[tuple[str, dict[str, Any], str]] = [
    ("pre_ln", {}, "silent"),
    ("sandwich_ln", {}, "silent"),
    ("full_attnres", {}, "silent"),
    ("block_attnres", {"block_size_sublayers": 2}, "silent"),
    ("moda", {}, "silent"),
    ("moda", {"rotate_depth_keys": False}, "silent"),
    ("pre_ln", {}, "reference"),
    ("sandwich_ln", {}, "reference"),
    ("keel", {"alpha": 2.5}, "reference"),
    ("hc", {}, "reference"),
    ("mhc", {}, "reference"),
]


@pytest.mark.parametrize(("design", "options"), CASES)
@torch.no_grad()
def test_the_walk_is_the_model(design: str, options: dict[str, Any]) -> None:
    model = random_model(design, **options)
    path = walk(model)
    with branch_outputs(model) as outputs:
        logits = model(IDS)
    assert torch.equal(path.logits(path.close(path.run(path.open(IDS)))), logits)
    moments = list(path.moments(path.open(IDS)))
    assert [m.j for m in moments] == list(range(2 * SHAPE.n_layers))
    for moment, y in zip(moments, outputs, strict=True):
        assert torch.equal(moment.y, y)
    middle = path.run(path.open(IDS), stop=1)
    assert torch.equal(path.logits(path.close(path.run(middle, start=1))), logits)


@pytest.mark.parametrize(("design", "options"), CASES)
@torch.no_grad()
def test_parts_sum_to_the_read(design: str, options: dict[str, Any]) -> None:
    path = walk(random_model(design, **options))
    reads = 0
    for j, (raw, parts) in enumerate(read_parts(path, IDS)):
        assert len(parts) == j + 1
        torch.testing.assert_close(sum(parts), raw, rtol=1e-10, atol=1e-12)
        reads += 1
    assert reads == 2 * SHAPE.n_layers + 1


@pytest.mark.parametrize("design", TRANSPORTED)
@pytest.mark.parametrize("layer", range(SHAPE.n_layers))
@torch.no_grad()
def test_silent_is_a_layer_that_returns_nothing(design: str, layer: int) -> None:
    model = random_model(design)
    with probes.skipped(model, layer):
        skipped = model(IDS)
    torch.testing.assert_close(skipped, zeroed(model, layer)(IDS), rtol=1e-10, atol=1e-12)
    assert (skipped - model(IDS)).abs().max() > 1e-2


@pytest.mark.parametrize(("design", "options", "skip"), LAYER_LESS)
@torch.no_grad()
def test_a_layer_left_out_is_a_model_without_it(design: str, options: dict[str, Any], skip: Any) -> None:
    model = random_model(design, **options)
    for layer in range(1, SHAPE.n_layers):
        with probes.skipped(model, layer, skip):
            torch.testing.assert_close(model(IDS), without(model, layer, **options)(IDS), rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_reference_skip_of_moda_leaves_slots_of_zeros() -> None:
    model = random_model("moda")
    for layer in range(SHAPE.n_layers):
        with probes.skipped(model, layer, "reference"):
            torch.testing.assert_close(model(IDS), zeroed(model, layer, slots=True)(IDS), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@torch.no_grad()
def test_reference_skip_of_sources_forces_the_next_boundary_to_the_newest(size: int) -> None:
    model = random_model("block_attnres", block_size_sublayers=size)
    sites = connections(model)
    for layer in range(SHAPE.n_layers):
        sources, forced = {0: model.embeddings(IDS)}, False
        for j in range(2 * SHAPE.n_layers):
            if j // 2 == layer:
                forced = True
                continue
            block = model.blocks[str(j // 2)]
            branch, norm = (
                (block.attention, block.attention_norm) if j % 2 == 0 else (block.feed_forward, block.feed_forward_norm)
            )
            present = [sources[k] for k in sorted(sources)]
            if forced and j % 2 == 0 and j % size == 0:
                h, forced = present[-1], False
            else:
                h = present[0] if j == 0 else sites[j].mix(tuple(present))
            y, k = branch(norm(h)), 1 + j // size
            sources[k] = sources[k] + y if k in sources else y
        present = [sources[k] for k in sorted(sources)]
        end = present[-1] if forced else model.residual_ends.mix(tuple(present))
        with probes.skipped(model, layer, "reference"):
            torch.testing.assert_close(model(IDS), model.lm_head(end), rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_a_source_of_zeros_is_nearly_no_source() -> None:
    model = zeroed(random_model("full_attnres"), 1)
    with probes.skipped(model, 1):
        silent = model(IDS)
    assert 0 < (silent - model(IDS)).abs().max() < 1e-4  # through the eps of the next norm


class _EleventhConnection(PreLNConnection):
    def read(self, state: Any, norm: Any) -> Any:
        return norm(0.7 * state), state

    def write(self, carry: Any, y: Any, norm: Any) -> Any:
        return 0.5 * carry + 2.0 * y


@dataclass(frozen=True, kw_only=True)
class Eleventh(PreLN):
    card: ClassVar[Card] = Card(
        name="eleventh",
        label="Eleventh",
        family="baseline",
        equation="",
        source="",
        arxiv=None,
        weight="fixed",
        published_lr=None,
    )

    def connection(self, site: Any) -> Any:
        return _EleventhConnection(site)


@torch.no_grad()
def test_an_eleventh_design_works_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(designs._REGISTRY, "eleventh", f"{__name__}:Eleventh")
    load = designs.load
    monkeypatch.setattr(designs, "load", lambda name: Eleventh if name == "eleventh" else load(name))
    model = random_model("eleventh")
    weight = probes.path_weights(model, IDS, **QUIET)["weight"]
    for j in range(2 * SHAPE.n_layers + 1):
        read = 1.0 if j == 2 * SHAPE.n_layers else 0.7
        expected = [read * 0.5**j, *(read * 2.0 * 0.5 ** (j - 1 - i) for i in range(j))]
        assert weight[j, : j + 1] == pytest.approx(expected, rel=1e-9)
    for layer in range(SHAPE.n_layers):
        with probes.skipped(model, layer):
            torch.testing.assert_close(model(IDS), zeroed(model, layer)(IDS), rtol=1e-10, atol=1e-12)
    assert probes.logit_lens(model, IDS, **QUIET)["kl_final_to_layer"][:, -1] == pytest.approx(0.0, abs=1e-12)
    assert probes.branch_norms(model, IDS, **QUIET)["end_share"].sum() == pytest.approx(1.0)
    for probe in (probes.angular_distance, probes.causal_scores, probes.permutation_scores, probes.layer_pruning):
        probe(model, IDS, **QUIET)
    for probe, words in ((probes.depth_mixing, "mixes no sources"), (probes.residual_transport, "has no streams")):
        with pytest.raises(ValueError, match=words):
            probe(model, IDS, **QUIET)
