"""The products and mixtures written for speed: exact gradients, however their results are used, and nothing copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import depthbench as db
from depthbench.designs.depth_mix import Opening, mix, remember, weights
from depthbench.designs.depth_store import Store, runs
from depthbench.designs.streams import project, read, write

from .cases import SHAPE, loss_of, random_model, tokens

EPS = 1e-6
# Queries known ahead, room for sources, reads: 19 and 22 reads end within and at the end of a group of eight.
CASES = [
    (False, 0, 5),
    (False, 2, 5),
    (False, 9, 5),
    *((True, c, n) for c, n in ((9, 5), (4, 5), (21, 19), (24, 22), (11, 19))),
]


def random(*size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*size, generator=generator, dtype=torch.float64).requires_grad_()


def plain_mix(sources: list[Tensor], u: Tensor) -> Tensor:
    values = torch.stack(sources)
    keys = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + EPS)
    return ((keys @ u).softmax(0).unsqueeze(-1) * values).sum(0)


def deep_reads(x: Tensor, us: Tensor, fast: bool, capacity: int, ahead: bool = False) -> Tensor:
    """Each source is a function of a mixture of those before; the last one is read directly as well."""
    opening = Opening(capacity, torch.cat([us, us[:1]]) if ahead else None, EPS) if capacity else None
    sources = [remember(x * 1.0, opening=opening) if fast else x]
    for m, u in enumerate(us):
        if m == 0 and ahead:  # mixture 0 is for two sources
            sources.append(remember(torch.sin(x), sources) if fast else torch.sin(x))
        h = mix(sources, u, EPS, m if ahead else None) if fast else plain_mix(sources, u)
        y = torch.tanh(h * 1.5 + 0.1)
        sources.append(remember(y, sources) if fast else y)
    last = mix(sources, us[0], EPS, len(us) if ahead else None) if fast else plain_mix(sources, us[0])
    return last + sources[2] * sources[-1]


@pytest.mark.parametrize(("ahead", "capacity", "n_reads"), CASES)
def test_mixtures_have_exact_gradients(ahead: bool, capacity: int, n_reads: int) -> None:
    """Without a store, with one that is too small, with all outputs in one; with queries known ahead, over groups."""
    x, us = random(2, 3, 6), random(n_reads, 6, seed=1)
    results = []
    for fast in (True, False):
        out = deep_reads(x, us, True, capacity, ahead) if fast else deep_reads(x, us, False, 0, ahead)
        grads = torch.autograd.grad(out.square().sum(), (x, us))
        results.append([out, *grads])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    if n_reads < 9:
        assert torch.autograd.gradcheck(lambda x, us: deep_reads(x, us, True, capacity, ahead), (x, us))


def test_sources_that_nobody_remembers_get_their_gradients_too() -> None:
    sources, u = [random(2, 3, 6, seed=s) for s in range(3)], random(6, seed=9)
    assert torch.autograd.gradcheck(lambda u, *sources: mix(sources, u, EPS), (u, *sources))
    stacked = random(3, 2, 3, 6)  # neighbours in memory
    assert torch.autograd.gradcheck(lambda u, stacked: mix(stacked.unbind(0), u, EPS), (u, stacked))
    mixed = (weights(sources, u, EPS).unsqueeze(-1) * torch.stack(sources)).sum(0)
    torch.testing.assert_close(mix(sources, u, EPS), mixed, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("ahead", "capacity", "n_reads"), CASES)
def test_a_second_backward_and_one_for_part_of_the_graph(ahead: bool, capacity: int, n_reads: int) -> None:
    x, us = random(2, 3, 6), random(n_reads, 6, seed=1)
    expected = torch.autograd.grad(deep_reads(x, us, False, 0, ahead).sum(), (x, us))
    out = deep_reads(x, us, True, capacity, ahead).sum()
    torch.autograd.grad(out, us, retain_graph=True)  # leaves shares with sources that it does not reach
    for keep in (True, False):
        for got, want in zip(torch.autograd.grad(out, (x, us), retain_graph=keep), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("design", ["full_attnres", "block_attnres"])
def test_an_old_state_stays_as_it_was(design: str) -> None:
    """Going on twice from one state: the second continuation does not write over what the first has stored."""
    model, ids = random_model(design), tokens()
    state = model.residual_ends.open(model.embeddings(ids))
    state = model.blocks["0"](state)
    values = [source.clone() for source in state]
    first = model.blocks["1"](state)
    ahead = [source.clone() for source in first]
    second = model.blocks["2"](state)
    assert all(torch.equal(a, b) for a, b in zip(state, values, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, ahead, strict=True))
    loss = model.residual_ends.close(first).sum() + model.residual_ends.close(second).square().sum()
    got = torch.autograd.grad(loss, model.embeddings.weight)[0]
    with torch.no_grad():  # a difference quotient along one direction
        losses, weight = [], model.embeddings.weight
        direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=weight.dtype)
        for sign in (1, -1):
            weight.add_(direction, alpha=sign * 1e-6)
            state = model.blocks["0"](model.residual_ends.open(model.embeddings(ids)))
            ends = [model.residual_ends.close(model.blocks[k](state)) for k in ("1", "2")]
            losses.append(ends[0].sum() + ends[1].square().sum())
            weight.add_(direction, alpha=-sign * 1e-6)
    slope = (losses[0] - losses[1]) / 2e-6
    torch.testing.assert_close((got * direction).sum(), slope, rtol=1e-6, atol=1e-6)


def test_neighbours_are_read_as_one_array() -> None:
    store = Store(torch.zeros(2, 3), 3)
    values = [torch.full((2, 3), float(k)) for k in range(4)]
    assert [store.put(k, values[k]) for k in range(4)] == [True, True, True, False], "full"
    assert store.put(1, values[1]) and not store.put(1, values[2]), "the same again, and something else"
    rows = [values[3], *(store.get(k) for k in range(3)), values[0]]
    assert [len(run) for run in runs(rows, torch.float32)] == [1, 3, 1]
    assert [len(run) for run in runs(rows, torch.float64)] == [1] * 5
    assert torch.equal(torch.cat(list(runs(rows, torch.float32))), torch.stack(rows))


def kept(model: Any, ids: Tensor) -> int:
    """Bytes kept for the backward pass, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            seen[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = loss_of(model, ids)
    del loss
    return sum(seen.values())


@pytest.mark.parametrize("design", ["full_attnres", "block_attnres"])
def test_sources_are_kept_once(design: str) -> None:
    shape = SHAPE.model_copy(update={"n_layers": 12, "d_model": 64, "d_ff": 64})
    ids = tokens(batch=2, length=33)
    plain, model = (kept(db.build_model(name, shape), ids) for name in ("pre_ln", design))
    copy = (shape.n_sublayers + 1) * 2 * 32 * 64 * 4
    assert model - plain < 1.5 * copy  # a copy a read would be twelve


@pytest.mark.parametrize("mixed", [True, False])
def test_stream_products_have_exact_gradients(mixed: bool) -> None:
    streams, w, y = random(2, 3, 4, 6), random(6, 5, seed=1), random(2, 3, 6, seed=2)

    def fast(streams: Tensor, w: Tensor, y: Tensor) -> Tensor:
        z, streams = project(streams, w, EPS)
        h, streams = read(streams, z[..., 0])
        return write(streams, z[..., 1:] if mixed else None, torch.tanh(h) * y, z[..., 2])

    def plain(streams: Tensor, w: Tensor, y: Tensor) -> Tensor:
        z = streams * torch.rsqrt(streams.pow(2).mean(-1, keepdim=True) + EPS) @ w
        h = (z[..., :1] * streams).sum(-2)
        kept = (z[..., 1:].unsqueeze(-1) * streams.unsqueeze(-3)).sum(-2) if mixed else streams
        return kept + z[..., 2].unsqueeze(-1) * (torch.tanh(h) * y).unsqueeze(-2)

    arguments = (streams, w, y)
    torch.testing.assert_close(fast(*arguments), plain(*arguments), rtol=1e-12, atol=1e-12)
    got, want = (torch.autograd.grad(f(*arguments).square().sum(), arguments) for f in (fast, plain))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    assert torch.autograd.gradcheck(fast, arguments)
