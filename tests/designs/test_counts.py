"""Parameters of every design: closed form = configuration = built model, and the counts its source publishes."""

from __future__ import annotations

from typing import Any

import pytest

import depthbench as db
from depthbench.model import model_config

from .cases import CASES, SHAPE


@pytest.mark.parametrize(("design", "options"), CASES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        db.Shape(n_layers=5, d_model=12, n_heads=1, d_ff=16, vocab_size=9),
        db.Shape(n_layers=1, d_model=12, n_heads=2, d_ff=16, vocab_size=9),
    ],
    ids=["gqa", "odd", "one-layer"],
)
def test_counts_closed_form_config_and_model(design: str, options: dict[str, Any], shape: db.Shape) -> None:
    model = db.build_model(design, shape, **options)
    count = shape.num_params(design, **options)
    numel = sum(parameter.numel() for parameter in model.parameters())
    assert count.total == numel == model.num_params == model_config(design, shape, **options).num_params
    own = sum(
        p.numel() for name, p in model.named_parameters() if "_residual." in name or name.startswith("residual_ends")
    )
    assert count.design == own
    assert all(parameter.dim() > 0 for parameter in model.parameters()), "FSDP2 refuses 0-dimensional parameters"


def test_published_counts() -> None:
    olmo_1b = db.Shape(n_layers=16, d_model=2048, n_heads=16, d_ff=5461, vocab_size=10)
    olmo_7b = db.Shape(n_layers=32, d_model=4096, n_heads=32, d_ff=11008, vocab_size=10)
    assert olmo_1b.num_params("hc").design == 394_048  # the source's table, 32 connections
    assert olmo_7b.num_params("hc").design == 1_574_528
    deep = db.Shape(n_layers=48, d_model=150, n_heads=1, d_ff=400, vocab_size=10)
    # The source counts an inert query and gain of the first sublayer.
    assert deep.num_params("full_attnres").design == 29_100 - 2 * 150
    assert deep.num_params("block_attnres") == deep.num_params("full_attnres")
    moda_700m = db.Shape(n_layers=36, d_model=1024, n_heads=16, n_kv_heads=8, d_ff=4096, vocab_size=10)
    assert moda_700m.num_params("moda").design == 35 * 1_048_576
    moda_small = db.Shape(n_layers=48, d_model=384, n_heads=6, n_kv_heads=2, d_ff=1024, vocab_size=10)
    assert moda_small.num_params("moda").design == 47 * 98_304


@pytest.mark.parametrize("shape", [db.SUITES["main-400m"].shape(24), db.SUITES["main-400m"].shape(70)], ids=str)
def test_counts_by_hand(shape: db.Shape) -> None:
    n_layers, d = shape.n_layers, shape.d_model
    by_hand = {
        "sandwich_ln": n_layers * 2 * d,
        "lns": 0,
        "deepnorm": 0,
        "keel": (2 * n_layers - 1) * d,
        "hc": 2 * n_layers * (6 * d + 26),
        "mhc": 2 * n_layers * (96 * d + 27),
        "block_attnres": 4 * n_layers * d,
        "moda": (n_layers - 1) * 2 * d * d,
    }
    for design, own in by_hand.items():
        assert shape.num_params(design).design == own, design
    assert shape.num_params("sandwich_ln", embedding_norm=True).design == by_hand["sandwich_ln"] + d
    assert shape.num_params("moda", ffn_kv=False).design == 0
