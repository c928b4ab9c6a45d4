"""The published numbers: how many there are, their sums and spot values, and that every contradiction told is one."""

from __future__ import annotations

import pandas as pd
import pytest

from depthbench import designs, published

COUNTS = {  # table: how many numbers, and their sum, as counted over the sources and not over the file
    "shapes": (25, 13_017_476_192),
    "val_loss_400m": (54, 148.176),
    "val_loss_iso_backbone_300m": (15, 41.0),
    "downstream_nll_400m": (150, 455.943),
    "late_pairs": (6, 113),
    "block_attnres": (9, 53),
    "effective_rank": (4, 8.43),
    "prefill": (3, 9.4),
    "optimal_lr_400m": (10, 0.027),
    "lr_sweep": (9, 0.046),
    "text_values": (12, 32.683),
    "token_budgets": (7, 72_200),
    "moda_throughput": (9, 202_628),
}
TEN = ["pre_ln", "sandwich_ln", "lns", "deepnorm", "keel", "hc", "mhc", "full_attnres", "block_attnres", "moda"]


def test_every_table_is_counted() -> None:
    assert published.names() == tuple(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_and_sums(name: str) -> None:
    frame = published.table(name)
    assert (len(frame), pytest.approx(frame["value"].sum(), rel=1e-12)) == COUNTS[name]


@pytest.mark.parametrize("name", COUNTS)
def test_tables_carry_their_source(name: str) -> None:
    frame, about = published.table(name), published.about(name)
    assert list(frame.columns[:3]) == ["design", "n_layers", "d_model"]
    assert list(frame.columns[-4:]) == ["value", "source", "uncertainty", "note"]
    assert set(frame["source"]) == {about["source"]} and about["source"] and about["unit"] and about["title"]
    assert set(frame["design"].dropna()) <= set(TEN)
    assert frame["value"].notna().all()
    frame.loc[:, "value"] = 0  # a reader's copy
    assert published.table(name)["value"].sum() > 0


def test_uncertainty() -> None:
    said = {name: published.about(name)["uncertainty"] for name in published.names()}
    figures = {"val_loss_400m", "val_loss_iso_backbone_300m", "downstream_nll_400m"}
    assert {name for name, u in said.items() if u == 0.001} == figures
    assert {name for name, u in said.items() if u == "approx"} == {"late_pairs"}
    assert all(u is None for name, u in said.items() if name not in {*figures, "late_pairs"})
    assert published.table("shapes")["uncertainty"].iloc[0] is None


@pytest.mark.parametrize(
    ("table", "where", "number"),
    [
        ("val_loss_400m", {"design": "hc", "n_layers": 70}, 2.682),
        ("val_loss_400m", {"design": "mhc", "n_layers": 24}, 2.710),
        ("val_loss_400m", {"design": "deepnorm", "n_layers": 16}, 2.790),
        ("val_loss_400m", {"design": "moda", "n_layers": 32}, 2.780),
        ("val_loss_400m", {"design": "full_attnres", "d_model": 800}, 2.708),
        ("val_loss_iso_backbone_300m", {"design": "hc", "n_layers": 84}, 2.719),
        ("val_loss_iso_backbone_300m", {"design": "pre_ln", "n_layers": 42}, 2.817),
        ("downstream_nll_400m", {"design": "keel", "n_layers": 32, "domain": "coding"}, 3.628),
        ("downstream_nll_400m", {"design": "hc", "n_layers": 24, "domain": "stem"}, 2.354),
        ("downstream_nll_400m", {"design": "full_attnres", "n_layers": 32, "domain": "math"}, 2.844),
        ("late_pairs", {"design": "full_attnres", "score": "causal"}, 16),
        ("late_pairs", {"design": "hc", "threshold": 0.15}, 35),
        ("block_attnres", {"quantity": "n_boundaries"}, 8),
        ("block_attnres", {"quantity": "block_size_sublayers", "n_layers": 28}, 7),
        ("block_attnres", {"quantity": "dead_segment_layers", "n_layers": 24}, 5),
        ("effective_rank", {"design": "mhc", "bound": "highest"}, 1.65),
        ("effective_rank", {"design": "hc", "bound": "lowest"}, 2.53),
        ("prefill", {"quantity": "prefill_tflop_per_sequence", "n_layers": 70}, 4.4),
        ("prefill", {"relation": ">"}, 2.0),
        ("token_budgets", {"suite": "validate-1.6b"}, 30_400),
        ("moda_throughput", {"kernel": "new", "n_layers": 16}, 22_866),
    ],
)
def test_spot_values(table: str, where: dict[str, object], number: float) -> None:
    assert published.value(table, **where) == number


def test_who_is_published_where() -> None:
    main = published.table("val_loss_400m")
    depths = main.groupby("design", sort=False)["n_layers"].apply(tuple)
    assert list(depths.index) == TEN
    for design, have in depths.items():
        deep = (42, 70) if design in ("hc", "full_attnres") else ()
        assert have == (16, 20, 24, 28, 32, *deep)
    downstream = published.table("downstream_nll_400m")
    assert (downstream.groupby(["domain", "design"]).size() == 5).all() and downstream["domain"].nunique() == 3
    tasks = downstream.groupby("domain")["tasks"].unique().map(list).to_dict()
    assert tasks == {"coding": ["MBPP+HumanEval"], "stem": ["SciQ+GPQA"], "math": ["GSM8K+MATH-500"]}


def test_aspect_ratios_as_printed() -> None:
    for name in ("shapes", "val_loss_400m", "val_loss_iso_backbone_300m", "downstream_nll_400m", "prefill"):
        frame = published.table(name).dropna(subset="aspect_as_printed")
        assert len(frame) and (frame["aspect_ratio"] == frame["d_model"] / frame["n_layers"]).all()
        assert (frame["aspect_ratio"] - frame["aspect_as_printed"]).abs().max() < 0.06  # the page prints 19.1 for 19.05


def test_shapes_add_up() -> None:
    shapes = published.table("shapes")
    assert len(shapes.drop_duplicates(["n_layers", "d_model"])) == 23
    assert (shapes["head_dim"] * shapes["n_heads"] == shapes["d_model"]).all()
    assert (shapes["value"] - shapes["backbone"] == (2 * 50280 + 1) * shapes["d_model"]).all()
    printed = shapes.dropna(subset="total_as_printed")
    assert len(printed) == 13
    assert (printed["total_as_printed"] == (printed["value"] / 1e6).round().astype(int).astype(str) + "M").all()


def test_learning_rates() -> None:
    table = published.table("optimal_lr_400m")
    assert list(table["design"]) == TEN
    assert {d: published.optimal_lr(d) for d in TEN} == dict.fromkeys(TEN, 2e-3) | {"lns": 1e-2, "deepnorm": 1e-3}
    for design in designs.names():
        if design in TEN:
            assert designs.get(design).published_lr == published.optimal_lr(design)
    with pytest.raises(LookupError, match="0 rows"):
        published.optimal_lr("postnorm")


def test_labels() -> None:
    labels = published.labels()
    assert list(labels) == TEN
    assert (labels["pre_ln"], labels["full_attnres"], labels["moda"]) == ("Pre-LN", "Full AttnRes", "MoDA (Pre-LN)")


def test_questions_without_one_answer() -> None:
    with pytest.raises(KeyError, match="val_loss_400m"):
        published.table("val_loss")
    with pytest.raises(KeyError, match="no column depth"):
        published.value("val_loss_400m", depth=3)
    with pytest.raises(LookupError, match="7 rows"):
        published.value("val_loss_400m", design="hc")
    with pytest.raises(LookupError, match="0 rows"):
        published.value("val_loss_400m", design="pre_ln", n_layers=70)


def case(name: str) -> pd.Series:
    frame = published.contradictions().set_index("id")
    return frame.loc[name]


def loss(design: str, n_layers: int, table: str = "val_loss_400m", **where: object) -> float:
    return published.value(table, design=design, n_layers=n_layers, **where)


def test_contradictions_prose_against_chart() -> None:
    for name, design, n_layers in (("hc-l32", "hc", 32), ("block-attnres-l20", "block_attnres", 20)):
        row, chart = case(name), loss(design, n_layers)
        prose = published.value("text_values", design=design, n_layers=n_layers, where="prose")
        assert (row["said_value"], row["shown_value"]) == (prose, chart) and prose != chart
    said = published.table("text_values").query("where == 'prose'")
    differ = [d for d, n, v in zip(said["design"], said["n_layers"], said["value"], strict=True) if loss(d, n) != v]
    assert differ == ["hc", "block_attnres"]  # every other number of the prose is in the chart


def test_contradictions_of_trend() -> None:
    assert loss("pre_ln", 16) == loss("pre_ln", 20) == case("pre-ln-monotone")["shown_value"]
    assert loss("hc", 24) < loss("hc", 28) == case("hc-keeps-improving")["shown_value"] > loss("hc", 32)
    iso = "val_loss_iso_backbone_300m"
    assert loss("full_attnres", 32, iso) < loss("full_attnres", 42, iso) == case("iso-full-attnres")["shown_value"]
    assert loss("hc", 70, iso) < loss("hc", 84, iso) == case("iso-hc")["shown_value"]
    stem = [loss("hc", n, "downstream_nll_400m", domain="stem") for n in (24, 28)]
    assert stem[0] < stem[1] == case("downstream-consistent")["shown_value"]


def test_contradictions_of_shape() -> None:
    shapes = published.table("shapes")
    for name, n_layers in (("aspect-76", 17), ("aspect-28", 34)):
        row = case(name)
        ratio = shapes[shapes["n_layers"] == n_layers]["aspect_ratio"].item()
        assert row["n_layers"] == n_layers and row["shown_value"] == pytest.approx(ratio, abs=0.005)
        assert abs(ratio - row["said_value"]) > 1
    row = case("twenty-five-shapes")
    distinct = len(shapes.drop_duplicates(["n_layers", "d_model"]))
    assert (row["said_value"], row["shown_value"]) == (len(shapes), distinct)


def test_contradictions_hold_together() -> None:
    frame = published.contradictions()
    assert frame["id"].is_unique and len(frame) == 16
    assert set(frame["kind"]) == {"prose-vs-chart", "prose-vs-table", "prose-vs-code"}
    both = frame.dropna(subset=["said_value", "shown_value"])
    assert (both["said_value"] != both["shown_value"]).all()
    dead = case("dead-segment")
    assert dead["shown_value"] == published.value("block_attnres", quantity="dead_segment_layers", n_layers=32)
    assert dead["said_value"] * 2 == published.value("block_attnres", quantity="block_size_sublayers", n_layers=32)
    assert case("deepnorm-lr")["said_value"] == published.optimal_lr("deepnorm")
