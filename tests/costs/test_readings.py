"""Readings on frames whose answer is known, and on the committed rows."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest

import depthbench as db
from depthbench import costs

SHAPE = db.SUITES["pocket"].shape(4)


def runs() -> pd.DataFrame:
    """Committed rows of the small grid: one recipe."""
    rows = db.load_runs("committed")
    return rows[(rows.suite == "pocket") & (rows.n_tokens == 4_175_872)]


def points() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "name": ["cheap", "dear", "beaten", "tie", "worse for the same", "same for more", "blank"],
            "train_flops": [1.0, 3.0, 2.0, 1.0, 1.0, 3.5, 0.5],
            "loss": [2.0, 1.0, 2.5, 2.0, 2.2, 1.0, math.nan],
        }
    )


def test_pareto_keeps_what_nothing_beats() -> None:
    kept = costs.pareto(points())
    assert list(kept[kept.efficient].name) == ["cheap", "dear", "tie"]


def test_best_within_pays_for_what_it_can() -> None:
    best = costs.best_within(points().dropna(), [0.1, 2.0, 3.0])
    assert list(best.budget) == [2.0, 3.0]
    assert list(best.name) == ["cheap", "dear"]
    assert list(best.n_within) == [4, 5]
    assert costs.best_within(points(), [0.1]).empty
    by_name = costs.best_within(points().dropna(), [2.0], by=("name",))
    assert set(by_name.name) == {"cheap", "beaten", "tie", "worse for the same"}


def test_flops_of_runs_are_those_of_their_shape_and_tokens() -> None:
    row = costs.with_costs(runs()).iloc[0]
    shape = db.Shape(**{name: int(row[name]) for name in SHAPE.model_dump()})
    expected = costs.training_flops(
        row.design, shape, int(row.n_tokens), seq_len=int(row.seq_len), **json.loads(row.options)
    )
    assert row.train_flops == pytest.approx(expected, rel=1e-12)


def test_points_are_means_over_seeds_at_the_best_rate() -> None:
    rows = runs()
    found = costs.loss_and_cost(rows)
    assert not found.duplicated(["design", "n_layers", "d_model", "recipe"]).any()
    for point in found.itertuples():
        own = rows[
            (rows.design == point.design) & (rows.n_layers == point.n_layers) & (rows.d_model == point.d_model)
            & (rows.recipe == point.recipe) & (rows.status == "complete")
        ]  # fmt: skip
        means = own[own.lr == point.lr].val_loss_nats
        assert point.loss == pytest.approx(means.mean())
        assert point.n == len(means)


def test_losses_on_other_data_are_not_compared() -> None:
    rows = runs()
    other = rows.assign(data_sha256="another")
    with pytest.raises(ValueError, match="mix data_sha256"):
        costs.loss_and_cost(pd.concat([rows, other]))


def test_loss_at_a_budget_is_read_off_the_curve() -> None:
    run = runs().head(1)
    total, n = float(costs.with_costs(run).train_flops.iloc[0]), float(run.n_tokens.iloc[0])
    steps = range(1, 101)
    curve = pd.DataFrame({"tokens": [n * i / 100 for i in steps], "loss": [10.0 - i / 20 for i in steps]})
    curve["lr"] = [1 - i / 200 for i in steps]
    curves = {run.run_id.iloc[0]: curve}
    half = costs.loss_at_budget(run, 0.5 * total, curves=curves, window=0.05).iloc[0]
    assert half.schedule == pytest.approx(0.5)
    # Tokens in (47.5, 50] hundredths: i = 48, 49, 50.
    assert half.train_loss_nats == pytest.approx(10 - 49 / 20)
    assert half.lr_fraction == pytest.approx((1 - 50 / 200) / (1 - 1 / 200))
    assert math.isnan(costs.loss_at_budget(run, 1.5 * total, curves=curves).train_loss_nats.iloc[0])
    assert math.isnan(costs.loss_at_budget(run, 0.5 * total, curves={}).train_loss_nats.iloc[0])
    with pytest.raises(ValueError, match="budget=0"):
        costs.loss_at_budget(run, 0, curves=curves)


@pytest.mark.parametrize("design", ["moda", "mhc"])
def test_same_backbone_and_same_total(design: str) -> None:
    shape = db.SUITES["main-400m"].shape(70)
    table = costs.same_backbone_same_total(design, shape).set_index("reading")
    baseline, own = shape.num_params().total, shape.num_params(design).total
    assert table.params_total["baseline"] == baseline
    assert table.params_total["same backbone"] == own
    assert table.d_model["same backbone"] == shape.d_model
    # The design's own parameters cost width at the same total, and buy it otherwise (or less than a step of either).
    assert table.d_model["same total"] <= shape.d_model <= table.d_model["as width"]
    step = 2 * shape.n_heads
    for reading, name, budget in (("same total", design, baseline), ("as width", "pre_ln", own)):
        width = int(table.d_model[reading])
        gap = abs(table.params_total[reading] - budget)
        for near in (width - step, width + step):
            other = db.shapes.feed_forward_width(near)
            near_shape = db.Shape(**{**shape.model_dump(), "d_model": near, "d_ff": other})
            assert gap <= abs(near_shape.num_params(name).total - budget)
