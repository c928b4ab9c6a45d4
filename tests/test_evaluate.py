"""Validation loss: every token but the first exactly once, and a standard error that counts documents."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import depthbench as db
from depthbench.evaluate import document_mean, token_nll, validation_loss

SHAPE = db.Shape(n_layers=2, d_model=16, n_heads=2, d_ff=32, vocab_size=29)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    model = db.build_model("hc", SHAPE, seed=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def stream(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, SHAPE.vocab_size, n).astype(np.uint16)


@torch.no_grad()
def plain_loop(model: torch.nn.Module, tokens: np.ndarray, seq_len: int) -> np.ndarray:
    """One token at a time: the target at i is predicted from the start of its window up to i - 1."""
    out = []
    for i in range(1, len(tokens)):
        start = (i - 1) // seq_len * seq_len
        context = torch.from_numpy(tokens[start:i].astype(np.int64))[None]
        out.append(F.cross_entropy(model(context)[0, -1:], torch.tensor([int(tokens[i])])).item())
    return np.array(out)


@pytest.mark.parametrize("n", [2, 8, 9, 10, 33, 40, 41])
def test_every_token_once(model: torch.nn.Module, n: int) -> None:
    tokens = stream(n)
    for batch_size in (1, 3):
        got = token_nll(model, tokens, seq_len=8, batch_size=batch_size)
        np.testing.assert_allclose(got, plain_loop(model, tokens, 8), atol=1e-5)


def test_mean_is_token_weighted_and_training_mode_is_kept(model: torch.nn.Module) -> None:
    tokens, documents = stream(41), np.repeat([0, 1, 2], [5, 30, 6])
    model.train()
    result = validation_loss(model, tokens, seq_len=8, documents=documents, bytes_per_token=2.0)
    assert model.training
    nll = plain_loop(model, tokens, 8)
    assert result.mean == pytest.approx(nll.mean(), abs=1e-5)
    assert (result.n_tokens, result.n_documents) == (40, 3)
    assert result.bits_per_byte == pytest.approx(nll.mean() / np.log(2) / 2.0, abs=1e-5)


def test_standard_error_is_that_of_resampled_documents() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(5, 60, 200)
    owner = np.repeat(np.arange(200), lengths)
    nll = (
        rng.normal(3, 1, len(owner)) + rng.normal(0, 0.5, 200)[owner]
    )  # documents differ, so tokens are not independent
    mean, error, count = document_mean(nll, owner)
    sums, picks = np.bincount(owner, nll), rng.integers(0, 200, (4000, 200))
    bootstrap = (sums[picks].sum(1) / lengths[picks].sum(1)).std()
    assert count == 200 and mean == pytest.approx(nll.mean())
    assert error == pytest.approx(bootstrap, rel=0.06)
    naive = nll.std() / np.sqrt(len(nll))
    assert error > 1.5 * naive, "the document effect must show"


def test_one_document_has_no_standard_error(model: torch.nn.Module) -> None:
    result = validation_loss(model, stream(20), seq_len=8)
    assert result.se is None and result.bits_per_byte is None and result.n_documents == 1


def test_too_short(model: torch.nn.Module) -> None:
    with pytest.raises(ValueError, match="at least two tokens"):
        token_nll(model, stream(1), seq_len=8)
