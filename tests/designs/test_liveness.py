"""Does every parameter of every design learn from its start? Those that cannot by law are named, with the reason."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

import pytest
import torch

import depthbench as db

from .cases import DESIGNS, SHAPE, loss_of, random_model, tokens

INERT = {
    "mhc": {
        "blocks.0.attention_residual.alpha_pre": "the streams are still copies: read weights only scale what is read, "
        "and the norm takes a scale out but for its eps",
        "blocks.0.attention_residual.alpha_res": "the streams are still copies: a map with rows of sum one keeps them",
        "blocks.2.feed_forward_residual.alpha_res": "the exit adds the streams up: a map with columns of sum one keeps "
        "the sum, up to what twenty rounds leave",
    }
}


@pytest.mark.parametrize(
    ("design", "options"),
    [*((name, {}) for name in DESIGNS), ("block_attnres", {"block_size_sublayers": 4}), ("mhc", {"init": "paper"})],
    ids=str,
)
def test_every_parameter_lives(design: str, options: dict[str, Any]) -> None:
    """Over several steps from the start every tensor gets a finite gradient that is not zero, and moves."""
    torch.manual_seed(0)
    model = db.build_model(design, SHAPE, seed=1, **options)
    start = {name: value.clone() for name, value in model.named_parameters()}
    seen = dict.fromkeys(start, False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for step in range(6):
        loss = loss_of(model, tokens(batch=4, length=12, seed=step))
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
            seen[name] |= bool(parameter.grad.any())
        optimizer.step()
    still = {name for name, value in model.named_parameters() if torch.equal(value, start[name]) or not seen[name]}
    assert still <= set(INERT.get(design, ()))


@pytest.mark.parametrize("sinkhorn", ["paper", "reference"])
def test_mhc_inert_parameters_are_inert_and_no_others(sinkhorn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depthbench.model.NORM_EPS", 1e-20)
    model = random_model("mhc", sinkhorn=sinkhorn)
    loss_of(model, tokens(batch=4, length=12)).backward()
    size = {name: float(p.grad.abs().max()) for name, p in model.named_parameters() if ".alpha_" in name}
    least = min(value for name, value in size.items() if name not in INERT["mhc"])
    assert all(size[name] < 1e-4 * least for name in INERT["mhc"])
    assert least > 1e-5


def test_mhc_maps_wait_for_streams_that_differ() -> None:
    """Copies of one stream cannot be told apart, so that the maps get no gradient at first; HC's do."""
    for design, name, learns in (("mhc", "bias", False), ("hc", "static_alpha", True)):
        model = db.build_model(design, SHAPE, seed=1, dtype=torch.float64)
        loss_of(model, tokens(batch=4, length=12)).backward()
        grad = getattr(model.blocks["1"].attention_residual, name).grad
        maps = grad[8:] if design == "mhc" else grad[:, 1:]
        assert (maps.abs().max() > 1e-10) == learns


@pytest.mark.parametrize("design", DESIGNS)
def test_no_decay_names_parameters_of_the_design(design: str) -> None:
    names = [name for name, _ in db.build_model(design, SHAPE).named_parameters()]
    globs = db.designs.load(design).no_decay
    exempt = {name for name in names for glob in globs if fnmatch(name, glob)}
    assert all(any(fnmatch(name, glob) for name in names) for glob in globs)
    last_names = {"hc": {"static_alpha", "static_beta"}, "mhc": {"bias", "alpha_pre", "alpha_post", "alpha_res"}}
    assert {name.rsplit(".", 1)[-1] for name in exempt} == last_names.get(design, set())
    assert len(exempt) == SHAPE.n_sublayers * len(last_names.get(design, ()))
