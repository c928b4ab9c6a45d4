"""Backward passes as libraries, probes and notebooks ask for them: twice, for some parameters only, over two passes.

Autograd gives all of this for nothing; a design with a backward pass of its own, or a state that outlives a call, may
not.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .cases import DESIGNS, loss_of, random_model, tokens

CASES = [*((name, {}) for name in DESIGNS), ("block_attnres", {"block_size_sublayers": 4})]
TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}  # float64: sums in another order, and nothing else


def gradients(model: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss_of(model, tokens(seed=seed)), parameters), strict=True))


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_backward_twice_adds_the_same_again(design: str, options: dict[str, Any]) -> None:
    model = random_model(design, **options)
    want, loss = gradients(model), loss_of(model, tokens())
    for times in (1, 2):
        loss.backward(retain_graph=times == 1)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, times * want[name], **TOLERANCE, msg=f"{name}, pass {times}")


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_two_forward_passes_share_one_backward(design: str, options: dict[str, Any]) -> None:
    model = random_model(design, **options)
    want = [gradients(model, seed) for seed in (0, 1)]
    losses = [loss_of(model, tokens(seed=seed)) for seed in (0, 1)]
    sum(losses).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, want[0][name] + want[1][name], **TOLERANCE, msg=name)


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
def test_some_gradients_are_those_of_all(design: str, options: dict[str, Any]) -> None:
    """Asked for alone, then with everything else frozen."""
    model = random_model(design, **options)
    want, parameters = gradients(model), dict(model.named_parameters())
    for name in ("embeddings.weight", "blocks.0.attention.w_out.weight", "blocks.1.feed_forward.w2.weight"):
        loss = loss_of(model, tokens())
        (grad,) = torch.autograd.grad(loss, parameters[name], retain_graph=True)
        torch.testing.assert_close(grad, want[name], **TOLERANCE, msg=name)
        loss.backward()  # the same graph again, now for all
        for other, parameter in parameters.items():
            torch.testing.assert_close(parameter.grad, want[other], **TOLERANCE, msg=f"{other} after {name} alone")
        model.zero_grad()
        for other, parameter in parameters.items():
            parameter.requires_grad_(other == name)
        loss_of(model, tokens()).backward()
        torch.testing.assert_close(parameters[name].grad, want[name], **TOLERANCE, msg=f"{name}, all else frozen")
        model.requires_grad_(True).zero_grad()
