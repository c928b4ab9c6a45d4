"""What the tests share: one thread, a small shape, and a small prepared data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import depthbench as db

SENTENCES = (
    "The river runs past the old mill and down to the sea.",
    "A careful reader asks where every number comes from.",
    "Seven layers of paint covered the door of the house.",
    "When the wind turned, the boats came home before dark.",
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder that holds the prepared data set 'tiny': made sentences, 300 byte-pair ids."""
    from datasets import Dataset

    root = tmp_path_factory.mktemp("data")
    texts = [
        " ".join(f"{SENTENCES[(i * k + k) % len(SENTENCES)]} {i * 7 + k}." for k in range(1, 12)) for i in range(240)
    ]
    db.data.prepare_from(Dataset.from_dict({"text": texts}), "tiny", root, vocab_size=300, val_fraction=0.1)
    return root


@pytest.fixture(scope="session")
def tiny_shape() -> db.Shape:
    return db.Shape(n_layers=2, d_model=16, n_heads=2, d_ff=32, vocab_size=300)
