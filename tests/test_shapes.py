"""Shapes: exact counts, the solver against brute force, and the suites against the published table, to the unit."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import depthbench as db
from depthbench import designs, published
from depthbench.shapes import ParamCount, feed_forward_width, frontier_frame
from depthbench.suites import shape_like

BASE = db.Shape(n_layers=24, d_model=1024, n_heads=16, d_ff=2736, vocab_size=50280)


def total_by_tensor(shape: db.Shape) -> int:
    """Pre-LN parameters, one tensor at a time."""
    d, h = shape.d_model, shape.head_dim
    block = [(d, shape.n_heads * h), (d, shape.n_kv_heads * h), (d, shape.n_kv_heads * h), (shape.n_heads * h, d)]
    block += [(d, shape.d_ff), (d, shape.d_ff), (shape.d_ff, d), (d, 1), (d, 1)]
    tables = [(shape.vocab_size, d), (d, shape.vocab_size), (d, 1)]
    return shape.n_layers * sum(a * b for a, b in block) + sum(a * b for a, b in tables)


def test_counts_by_hand() -> None:
    shape = db.Shape(n_layers=2, d_model=8, n_heads=2, n_kv_heads=1, d_ff=16, vocab_size=10)
    # a block: query and output 64 each, key and value 32 each, three feed-forward matrices 128 each, two gains 8 each
    assert shape.num_params() == ParamCount(total=1352, backbone=1184, embedding=160, design=0)


@given(
    st.integers(1, 90),
    st.integers(1, 40),
    st.sampled_from([(1, 1), (4, 4), (16, 16), (16, 8), (8, 1)]),
    st.integers(1, 9000),
    st.integers(1, 60_000),
)
@settings(max_examples=60, deadline=None)
def test_counts_tensor_by_tensor(n_layers: int, width: int, heads: tuple[int, int], d_ff: int, vocab_size: int) -> None:
    n_heads, n_kv_heads = heads
    shape = db.Shape(
        n_layers=n_layers,
        d_model=2 * n_heads * width,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_ff=d_ff,
        vocab_size=vocab_size,
    )
    count = shape.num_params()
    assert count.total == total_by_tensor(shape)
    assert count.total == count.backbone + count.embedding + count.design + shape.d_model


def test_unknown_suite_names_the_suites() -> None:
    with pytest.raises(KeyError, match="no suite 'poket'; the suites are main-400m"):
        db.SUITES["poket"]


@pytest.mark.parametrize("design", designs.names())
def test_design_parameters_are_counted(design: str) -> None:
    own = designs.get(design).extra_params(BASE)
    count = BASE.num_params(design)
    assert count.design == own and count.total == BASE.num_params().total + own
    assert BASE.size("total", design) == count.total and BASE.size("backbone", design) == count.backbone + own
    if design == "pre_ln":
        assert own == 0  # it defines the backbone


def test_shape_properties() -> None:
    assert (BASE.n_kv_heads, BASE.head_dim, BASE.n_sublayers) == (16, 64, 48)
    assert BASE.aspect_ratio == pytest.approx(42.67, abs=0.005)
    assert db.Shape(n_layers=24, d_model=1024, n_heads=16, n_kv_heads=16, d_ff=2736, vocab_size=50280) == BASE
    assert db.Shape.model_validate_json(BASE.model_dump_json()) == BASE
    with pytest.raises(ValueError, match="frozen"):
        BASE.d_model = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_layers": 0}, "n_layers"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"d_ff": 0}, "d_ff"),
        ({"n_heads": 0}, "n_heads"),
        ({"n_heads": 15}, "n_heads=15 does not divide d_model=1024"),
        ({"d_model": 16 * 5}, "head_dim=5 is odd"),
        ({"n_kv_heads": 3}, "n_kv_heads=3 does not divide n_heads=16"),
        ({"n_kv_heads": 0}, "n_kv_heads"),
        ({"depth": 3}, "depth"),
    ],
)
def test_shapes_that_do_not_fit(change: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        db.Shape(**{**BASE.model_dump(), **change})


def test_feed_forward_rules() -> None:
    assert [feed_forward_width(d) for d in (1024, 1216, 28, 6)] == [2736, 3248, 80, 16]  # 16 ceil(8 d / 48)
    assert feed_forward_width(2048, "3d") == 6144
    assert [feed_forward_width(d, "fill") for d in (52, 28, 6)] == [138, 74, 16]  # the even number nearest to 8 d / 3
    with pytest.raises(ValueError, match="8d/3, 3d"):
        feed_forward_width(64, "4d")  # type: ignore[arg-type]


@given(
    st.sampled_from(designs.names()),
    st.sampled_from(["total", "backbone"]),
    st.integers(1, 60),
    st.sampled_from([(1, 1), (2, 2), (4, 2)]),
    st.floats(3e4, 3e6),
    st.sampled_from(["8d/3", "3d"]),
)
@settings(max_examples=50, deadline=None)
def test_solve_is_the_nearest_of_all_widths(
    design: str, hold: Any, n_layers: int, heads: tuple[int, int], target: float, ffn: Any
) -> None:
    n_heads, n_kv_heads = heads
    how: dict[str, Any] = {"n_layers": n_layers, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "vocab_size": 64}
    found = db.solve(**{hold: target}, design=design, ffn=ffn, tolerance=1e9, **how)
    widths = range(2 * n_heads, 1200, 2 * n_heads)
    every = [db.Shape(d_model=d, d_ff=feed_forward_width(d, ffn), **how) for d in widths]
    assert found == min(every, key=lambda shape: abs(shape.size(hold, design) - target))


def test_solve_on_a_fine_grid() -> None:
    how: dict[str, Any] = {"n_layers": 6, "n_heads": 1, "vocab_size": 64}
    every = [db.Shape(d_model=d, d_ff=feed_forward_width(d), **how) for d in range(400, 460, 2)]
    sizes = [shape.num_params().total for shape in every]
    for i, shape in enumerate(every[:-1]):
        middle = (sizes[i] + sizes[i + 1]) / 2
        for budget, nearest in ((sizes[i], shape), (middle - 1, shape), (middle, shape), (middle + 1, every[i + 1])):
            assert db.solve(total=budget, **how) == nearest


def test_solve_from_the_published_budgets() -> None:
    deepest = db.solve(total=405e6, n_layers=70, n_heads=16, vocab_size=50280, design="pre_ln")
    assert (deepest.d_model, deepest.d_ff) == (640, 1712)
    assert db.solve(backbone=300e6, n_layers=84).d_model == 544
    exact = db.solve(total=405_406_720, n_layers=24, tolerance=0)
    assert exact == BASE


def test_solve_counts_the_design() -> None:
    budget = BASE.num_params("hc").total
    assert db.solve(total=budget, n_layers=24, design="hc", tolerance=0) == BASE
    with pytest.raises(db.InfeasibleShape):
        db.solve(total=budget, n_layers=24, tolerance=0)


def test_infeasible_names_the_nearest_shapes() -> None:
    with pytest.raises(db.InfeasibleShape) as caught:
        db.solve(total=405e6, n_layers=70, n_heads=24, tolerance=0.001)
    error = caught.value
    assert isinstance(error, ValueError) and error.below is not None and error.above is not None
    assert (error.below.d_model, error.above.d_model) == (624, 672)
    sizes = [shape.num_params().total for shape in (error.below, error.above)]
    assert sizes[0] < 405e6 < sizes[1]
    for said in (*(f"{size:,}" for size in sizes), "-3.73%", "+10.37%", "tolerance=0.038", "n_heads"):
        assert said in str(error)
    assert db.solve(total=405e6, n_layers=70, n_heads=24, tolerance=0.038) == error.below  # the advice works


def test_infeasible_below_the_narrowest() -> None:
    with pytest.raises(db.InfeasibleShape, match="nearest below: none") as caught:
        db.solve(total=1e6, n_layers=70)
    assert caught.value.below is None and caught.value.above is not None and caught.value.above.d_model == 32


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_layers": 0}, "n_layers=0 is not a count"),
        ({"n_layers": 2.5}, "n_layers=2.5 is not a count"),
        ({"n_heads": 0}, "n_heads=0"),
        ({"n_kv_heads": 3}, "n_kv_heads=3 does not divide n_heads=16"),
        ({"n_kv_heads": 0}, "n_kv_heads=0"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"total": -1.0}, "total=-1.0"),
        ({"total": float("nan")}, "total=nan"),
        ({"total": float("inf")}, "total=inf"),
        ({"backbone": 3e8}, "exactly one budget"),
        ({"total": None}, "exactly one budget"),
        ({"design": "postnorm"}, "pre_ln"),
        ({"ffn": "4d"}, "8d/3, 3d"),
        ({"tolerance": -0.1}, "tolerance=-0.1"),
        ({"options": {"no_such_option": 1}}, "no_such_option"),
    ],
)
def test_solve_refuses_nonsense(change: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"total": 405e6, "n_layers": 24, **change}
    with pytest.raises(ValueError, match=says):
        db.solve(**arguments)
    if "n_layers" not in change:  # and the frontier does not take it for an infeasible depth
        arguments.pop("n_layers")
        with pytest.raises(ValueError, match=says):
            db.frontier(depths=(24,), **arguments)


def test_frontier_lists_the_feasible_depths() -> None:
    how: dict[str, Any] = {"total": 186_836, "n_heads": 1, "vocab_size": 512, "tolerance": 0.01}
    depths = range(1, 41)
    shapes = db.frontier(depths=depths, **how)
    feasible = []
    for n_layers in depths:
        try:
            feasible.append(db.solve(n_layers=n_layers, **how))
        except db.InfeasibleShape as error:
            assert error.below is None or abs(error.below.num_params().total / 186_836 - 1) > 0.01
    assert shapes == feasible
    assert 0 < len(shapes) < len(depths)  # some left out, so that the test sees the skipping
    frame = frontier_frame(depths=depths, **how)
    assert list(frame["n_layers"]) == [shape.n_layers for shape in shapes]
    assert frame["relative_gap"].abs().max() <= 0.01


@pytest.mark.parametrize("design", designs.names())
def test_frontier_frame_agrees_with_the_shapes(design: str) -> None:
    how: dict[str, Any] = {"backbone": 3e8, "depths": (16, 24, 70), "design": design}
    frame = frontier_frame(**how)
    assert len(frame) == 3
    for row, shape in zip(frame.to_dict("records"), db.frontier(**how), strict=True):
        count = shape.num_params(design)
        assert row == {
            "n_layers": shape.n_layers,
            "d_model": shape.d_model,
            "d_ff": shape.d_ff,
            "head_dim": shape.head_dim,
            "aspect_ratio": shape.aspect_ratio,
            "total": count.total,
            "backbone": count.backbone,
            "embedding": count.embedding,
            "design": count.design,
            "relative_gap": (count.backbone + count.design) / 3e8 - 1,
        }


def test_suites_are_the_published_shapes_to_the_unit() -> None:
    table = published.table("shapes")
    assert len(table) == 25
    seen = 0
    for name, rows in table.groupby("suite", sort=False):
        suite = db.SUITES[str(name)]
        assert [shape.n_layers for shape in suite.shapes] == list(rows["n_layers"])
        for shape, row in zip(suite.shapes, rows.to_dict("records"), strict=True):
            count = shape.num_params()
            for key in ("d_model", "d_ff", "n_heads", "n_kv_heads", "head_dim"):
                assert getattr(shape, key) == row[key], (name, shape, key)
            assert (count.backbone, count.total) == (row["backbone"], row["value"]), (name, shape)
            assert shape.vocab_size == 50280
            seen += 1
    assert seen == 25


def test_suites() -> None:
    assert list(db.SUITES) == [
        "main-400m",
        "iso-backbone-300m",
        "scale-200m",
        "scale-300m",
        "scale-400m",
        "scale-500m",
        "validate-1.6b",
        "pocket",
        "pocket-iso-backbone",
        "pocket-half",
        "pocket-double",
    ]
    for name, suite in db.SUITES.items():
        assert suite.name == name and suite.base in suite.shapes
        assert suite.target == suite.base.size(suite.hold)
        assert suite.to_frame()["relative_gap"].abs().max() < 0.05
    main = db.SUITES["main-400m"]
    assert db.SUITES["scale-400m"].shapes == tuple(main.shape(n) for n in (32, 24, 16))
    assert {name for name, suite in db.SUITES.items() if suite.hold == "backbone"} == {
        "iso-backbone-300m",
        "pocket-iso-backbone",
    }
    with pytest.raises(KeyError, match="16, 20, 24, 28, 32, 42, 70"):
        main.shape(23)


def test_pocket_suite() -> None:
    pocket = db.SUITES["pocket"]
    assert [(s.n_layers, s.d_model) for s in pocket.shapes] == [(2, 72), (4, 56), (8, 40), (16, 32)]
    assert pocket.base.d_ff == 150 and pocket.target == 208_824
    assert {(s.n_heads, s.n_kv_heads, s.vocab_size) for s in pocket.shapes} == {(4, 4, 512)}
    assert pocket.recipe["n_tokens"] == 20 * 208_824 and pocket.n_steps == 2039


@pytest.mark.parametrize("name", [name for name in db.SUITES if name.startswith("pocket")])
def test_pocket_suites_hold_their_budget_within_one_percent(name: str) -> None:
    suite = db.SUITES[name]
    for design in db.designs.names(extras=True) if suite.counts_design else ("pre_ln",):
        for depth in (shape.n_layers for shape in suite.shapes):
            shape = suite.shape(depth, design)
            assert abs(shape.size(suite.hold, design) / suite.target - 1) < 0.01, (design, shape)
            assert 1.4 < shape.d_ff / shape.d_model < 4  # about 8 / 3


@pytest.mark.parametrize("design", ["pre_ln", "hc", "mhc", "moda"])
def test_fill_takes_the_width_whose_feed_forward_is_nearest_to_its_rule(design: str) -> None:
    """Brute force over every width: fill the budget with d_ff, then compare d_ff / d_model with 8 / 3."""
    for n_layers, total in ((2, 208_824), (8, 208_824), (16, 390_480), (24, 5e6)):
        best = None
        for d in range(8, 400, 8):
            fit = {"n_layers": n_layers, "d_model": d, "n_heads": 4, "vocab_size": 512}
            bare = db.Shape(**fit, d_ff=2).num_params(design).total
            d_ff = 2 + 2 * round((total - bare) / (2 * 3 * d * n_layers))
            if d_ff > 2:
                off = abs(math.log(d_ff / d / (8 / 3)))
                best = min(best, (off, d, d_ff)) if best else (off, d, d_ff)
        assert best is not None
        found = db.solve(total=total, n_layers=n_layers, n_heads=4, vocab_size=512, design=design, ffn="fill")
        assert (found.d_model, found.d_ff) == best[1:], (n_layers, total)


def test_a_suite_that_counts_the_design_narrows_what_adds_parameters() -> None:
    pocket, control = db.SUITES["pocket"], db.SUITES["pocket-iso-backbone"]
    assert pocket.shape(16, "mhc").d_model < pocket.shape(16).d_model
    assert pocket.shape(16, "lns") == pocket.shape(16), "a design that adds nothing has Pre-LN's shape"
    assert control.shape(16, "mhc") == control.shape(16), "the control has one shape for all"
    assert db.SUITES["main-400m"].shape(24, "moda") == db.SUITES["main-400m"].shape(24), "as published"


def test_recipes_agree_with_what_is_published() -> None:
    steps = published.table("token_budgets").set_index("suite")["value"]
    paper = {name: suite for name, suite in db.SUITES.items() if not name.startswith("pocket")}
    assert set(steps.index) == set(paper)
    sweep = published.table("lr_sweep")
    every = sweep[sweep["design"].isna()].groupby("scale")["value"].apply(tuple)
    own = tuple(sweep[sweep["design"] == "lns"]["value"])
    for name, suite in paper.items():
        assert suite.n_steps == steps[name] and suite.recipe["n_tokens"] == steps[name] * 512 * 2048
        assert (suite.recipe["seq_len"], suite.recipe["global_batch_tokens"]) == (2048, 2**20)
        scale = "1.6b" if name == "validate-1.6b" else "200m-500m"
        assert suite.lrs("pre_ln") == every[scale]
        assert suite.lrs("lns") == (every[scale] if scale == "1.6b" else own)
        if "best_lr" in suite.recipe:
            assert suite.recipe["best_lr"] == published.table("optimal_lr_400m").set_index("design")["value"].to_dict()
    assert "best_lr" in paper["main-400m"].recipe


@pytest.mark.parametrize("name", list(db.SUITES))
def test_recipes_are_fields_of_the_spec(name: str) -> None:
    suite = db.SUITES[name]
    fields = {
        k: v for k, v in suite.recipe.items() if k not in ("lrs", "lrs_by_design", "lrs_from", "best_lr", "seeds")
    }
    spec = db.TrainSpec(design="pre_ln", shape=suite.shapes[0], lr=suite.lrs("pre_ln")[0], **fields)
    assert spec.n_steps == suite.n_steps


def test_shape_in_the_manner_of_a_suite() -> None:
    big = db.SUITES["validate-1.6b"]
    assert shape_like("validate-1.6b", 40) == big.shape(40)
    between = shape_like("validate-1.6b", 34, d_ff=None)
    assert (between.n_kv_heads, between.d_ff) == (8, 3 * between.d_model)
    assert abs(between.num_params().total / big.target - 1) < 0.05
    narrow = shape_like("main-400m", 3, d_model=96, n_heads=4)
    assert narrow == db.Shape(n_layers=3, d_model=96, n_heads=4, n_kv_heads=4, d_ff=256, vocab_size=50280)
    assert shape_like("pocket", 4, d_ff=100) == db.SUITES["pocket"].base.model_copy(update={"d_ff": 100})
    assert shape_like("iso-backbone-300m", 56).d_model == db.solve(backbone=302_432_256, n_layers=56).d_model
    for wrong in ({"suite": "main"}, {"suite": "pocket", "d_ff": 0}):
        with pytest.raises(ValueError, match=r"main-400m|d_ff"):
            shape_like(n_layers=4, **wrong)  # type: ignore[arg-type]


def test_suites_load_without_torch() -> None:
    code = "import depthbench, sys; depthbench.SUITES, depthbench.published.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
