"""Closed forms against the paper's numbers, and what a design without costs, or a wrong argument, is told."""

from __future__ import annotations

from typing import Any

import pytest

import depthbench as db
from depthbench import costs, designs

SHAPES = {shape.n_layers: shape for shape in db.SUITES["main-400m"].shapes}
T = 4096


def test_prefill_goes_from_3_to_4_4_teraflop() -> None:
    """arXiv 2609.32534, Figure 11: 3.0 at 16 layers and 4.4 at 70, as Full AttnRes."""
    tera = {n: costs.prefill_flops("full_attnres", shape, T) / 1e12 for n, shape in SHAPES.items()}
    assert round(tera[16], 1) == 3.0
    assert round(tera[70], 1) == 4.4
    assert list(tera.values()) == sorted(tera.values())


def test_prefill_of_pre_ln_by_hand() -> None:
    shape = SHAPES[70]
    d, layers, d_ff = 640, 70, 1712
    by_hand = 2 * T * layers * (4 * d * d + 3 * d * d_ff) + 2 * T * T * layers * d
    assert (shape.d_model, shape.d_ff) == (d, d_ff)
    assert costs.prefill_flops("pre_ln", shape, T) == by_hand


@pytest.mark.parametrize(("n_layers", "megabytes"), [(16, 319), (70, 734)])
@pytest.mark.parametrize("design", designs.names())
def test_cache_goes_from_319_to_734_megabytes_whatever_the_design(design: str, n_layers: int, megabytes: int) -> None:
    assert round(costs.kv_cache_bytes(design, SHAPES[n_layers], T, "bfloat16") / 1e6) == megabytes


def test_grouped_queries_keep_a_part_of_the_cache() -> None:
    shape = db.SUITES["validate-1.6b"].base
    whole = db.Shape(**{**shape.model_dump(), "n_kv_heads": shape.n_heads})
    assert 2 * costs.kv_cache_bytes("pre_ln", shape) == costs.kv_cache_bytes("pre_ln", whole)


def test_countings_differ_by_half_the_scores_and_the_head() -> None:
    shape = SHAPES[24]
    paper, causal, full = (
        costs.prefill_flops("hc", shape, T, counting=counting) for counting in ("paper", "causal", "full")
    )
    assert causal - paper == 2 * T * shape.vocab_size * shape.d_model
    assert full - causal == 2 * T * T * shape.n_layers * shape.d_model


def test_streams_move_more_than_pre_ln_and_rival_full_attnres() -> None:
    """With four streams, HC moves (3 * 4 + 2) d a sublayer, Pre-LN 5 d, Full AttnRes about J / 2 sources a read."""
    shape = SHAPES[16]
    moved = {name: costs.bytes_moved_per_token(name, shape) for name in ("pre_ln", "hc", "full_attnres")}
    d, j = shape.d_model, shape.n_sublayers
    assert moved["pre_ln"] == 2 * (5 * j + 2) * d
    assert moved["hc"] == 2 * ((3 * 4 + 2) * j + 2 * 4 + 3) * d
    sources = sum(range(1, j + 2))  # 1 .. J + 1
    assert moved["full_attnres"] == 2 * (sources + j + 1) * d
    assert 0.5 < moved["hc"] / moved["full_attnres"] < 1
    by_op = costs.bytes_moved_per_token("hc", SHAPES[32], form="by_op")
    assert by_op == pytest.approx(costs.bytes_moved_per_token("full_attnres", SHAPES[32]), rel=0.05)


@pytest.mark.parametrize(
    ("n_layers", "megabytes"), [(16, 1.44), (20, 2.02), (24, 2.61), (28, 3.28), (32, 3.96), (70, 12.99)]
)
def test_traffic_of_full_attnres_as_worked_out_apart(n_layers: int, megabytes: float) -> None:
    """Every source of every read once and every output once, in bfloat16: worked out from the paper, not from here."""
    assert round(costs.bytes_moved_per_token("full_attnres", SHAPES[n_layers]) / 1e6, 2) == megabytes


def test_hc_by_operation_moves_34_d_a_sublayer_and_the_norm() -> None:
    """Norm 2 x 4, coefficients 4, read 5, mixing 8, write 9: 34 d; and 2 d for the norm of the branch."""
    shape = SHAPES[32]
    cost = costs.residual_cost("hc", shape)
    ends = (4 + 4 + 1 + 2) * shape.d_model
    assert cost.moved_by_op - ends == (34 + 2) * shape.d_model * shape.n_sublayers


def test_summary_has_a_row_a_design_and_shape() -> None:
    table = costs.summary(["pre_ln", "hc"], SHAPES.values())
    assert len(table) == 2 * len(SHAPES)
    row = table[(table.design == "hc") & (table.n_layers == 70)].iloc[0]
    parts = sum(row[f"{part}_flops"] for part in ("projections", "attention", "design", "head"))
    assert parts == row.prefill_flops == costs.prefill_flops("hc", SHAPES[70])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: costs.prefill_flops("pre_ln", s, 0), "seq_len=0"),
        (lambda s: costs.prefill_flops("pre_ln", s, counting="half"), "allowed: paper, causal, full"),
        (lambda s: costs.kv_cache_bytes("pre_ln", s, dtype="int7"), "unknown dtype 'int7'"),
        (lambda s: costs.bytes_moved_per_token("pre_ln", s, form="magic"), "allowed: fused, by_op"),
        (lambda s: costs.prefill_flops("hc", s, streams=3), "streams"),
    ],
)
def test_wrong_arguments_say_what_is_allowed(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call(SHAPES[16])


def test_a_new_design_brings_its_cost_or_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        pass

    class Own:
        def residual_cost(self, shape: db.Shape) -> dict[str, int]:
            return {"product_flops": 7, "state": shape.d_model, "moved": 1, "moved_by_op": 2, "kept": 3}

    class Half:
        def residual_cost(self, shape: db.Shape) -> dict[str, int]:
            return {"state": 1}

    made = {"bare": Bare(), "own": Own(), "half": Half()}
    monkeypatch.setattr(designs, "configure", lambda name, **options: made[name])
    with pytest.raises(costs.NoCost, match=r"residual_cost\(self, shape\)"):
        costs.residual_cost("bare", SHAPES[16])
    with pytest.raises(costs.NoCost, match="exactly kept, moved"):
        costs.residual_cost("half", SHAPES[16])
    own = costs.prefill_flops("own", SHAPES[16], T)
    monkeypatch.undo()
    assert own - costs.prefill_flops("pre_ln", SHAPES[16], T) == 7 * T
