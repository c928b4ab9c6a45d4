"""Slopes as worked by hand, against a library's regression, and by simulation; the rule of agreement."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import linregress

from depthbench import published
from depthbench.comparison import agreement, cells, published_slope, slopes, slopes_against
from depthbench.comparison.slopes import difference, slope, weights
from tests.comparison.rows import run_row

# aspect ratios 16 and 4: x = 4 and 2, mean 3, sum of squares 2, so w = 1/2 and -1/2
BY_HAND = ([3.0, 3.4], [0.1, 0.3], [2, 3], [16.0, 4.0])


def test_two_cells_by_hand() -> None:
    found = slope(*BY_HAND)
    assert found.slope == pytest.approx(-0.2)  # 3.0 / 2 - 3.4 / 2: each doubling gains 0.2 nats, deeper is worse
    assert found.freedom == 3 and found.sd == pytest.approx(math.sqrt((0.01 + 2 * 0.09) / 3))
    assert found.se == pytest.approx(found.sd * math.sqrt(0.25 / 2 + 0.25 / 3))


def test_the_slope_is_that_of_a_regression_through_the_means() -> None:
    rng = np.random.default_rng(0)
    means, aspects = rng.normal(3, 0.2, 5), np.array([40.0, 20.0, 9.0, 5.0, 2.0])
    found = slope(means, [0.1] * 5, [3] * 5, aspects)
    assert found.slope == pytest.approx(linregress(np.log2(aspects), means).slope)


def test_the_interval_holds_the_true_slope_in_19_of_20_worlds() -> None:
    """A curve that is no line: the interval is for the slope of its own means, so the bend does not widen it."""
    rng = np.random.default_rng(1)
    truth, aspects, n = np.array([3.0, 3.3, 3.1, 3.5]), np.array([36.0, 14.0, 5.0, 2.0]), 3
    exact = slope(truth, [0.0] * 4, [n] * 4, aspects).slope
    hits = 0
    for _ in range(2000):
        runs = truth + 0.05 * rng.standard_normal((n, 4))
        found = slope(runs.mean(0), runs.std(0, ddof=1), [n] * 4, aspects)
        hits += abs(found.slope - exact) <= 2.306 * found.se  # Student's t at 8 degrees of freedom
    assert 0.935 < hits / 2000 < 0.965


def test_one_seed_in_any_cell_claims_nothing() -> None:
    found = slope([3.0, 3.4], [0.1, math.nan], [2, 1], [16.0, 4.0])
    assert found.slope == pytest.approx(-0.2) and math.isnan(found.se) and found.freedom == 0
    assert math.isnan(difference(found, slope(*BY_HAND)).se)


def test_a_slope_needs_two_shapes() -> None:
    with pytest.raises(ValueError, match="two shapes"):
        slope([3.0, 3.4], [0.1, 0.1], [2, 2], [8.0, 8.0])


def rows(**lines: dict[int, tuple[float, ...]]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            run_row(design=design, n_layers=n, aspect_ratio=64.0 / n, seed=seed, val_loss_nats=loss)
            for design, line in lines.items()
            for n, losses in line.items()
            for seed, loss in enumerate(losses)
        ]
    )


GRID = {
    "pre_ln": {2: (3.0, 3.01), 4: (3.1, 3.11), 8: (3.2, 3.21)},
    "hc": {4: (2.9, 2.91), 8: (2.8, 2.81)},
    "keel": {2: (3.0, 3.6), 8: (3.1, 3.5)},
    "lns": {2: (3.0,), 8: (3.1,)},
}


def test_tables_of_slopes() -> None:
    frame = cells(rows(**GRID), suite="pocket")
    own = slopes(frame).set_index("design")
    assert own.loc["pre_ln", "slope"] == pytest.approx(-0.1) and own.loc["pre_ln", "verdict"].startswith(
        "deeper is worse"
    )
    assert own.loc["hc", "slope"] == pytest.approx(0.1) and own.loc["hc", "verdict"].startswith("deeper is better")
    assert own.loc["keel", "verdict"].startswith("within") and own.loc["lns", "verdict"].startswith("one seed")
    beside = slopes_against(frame).set_index("design")
    assert beside.loc["hc", "slope"] == pytest.approx(0.2) and beside.loc["hc", "n_shapes"] == 2
    assert beside.loc["hc", "verdict"].startswith("gains more from depth") and "pre_ln" not in beside.index


def test_beside_the_baseline_a_depth_it_lacks_counts_for_nothing() -> None:
    deeper = GRID | {"hc": GRID["hc"] | {16: (9.0, 9.1)}}
    with_it, without = (
        slopes_against(cells(rows(**grid), suite="pocket")).set_index("design") for grid in (deeper, GRID)
    )
    assert with_it.loc["hc", "slope"] == without.loc["hc", "slope"] and with_it.loc["hc", "n_shapes"] == 2


def test_agreement_follows_the_signs_and_the_noise() -> None:
    hc, keel, pre = published_slope("hc"), published_slope("keel"), published_slope("pre_ln")
    assert hc and hc.sign == 1 and keel and pre and pre.sign == -1
    told = agreement(cells(rows(**GRID), suite="pocket")).set_index(["design", "question"])["verdict"]
    assert told["pre_ln", "deeper is better"] == "agrees" and told["hc", "deeper is better"] == "agrees"
    assert told["keel", "deeper is better"] == told["lns", "deeper is better"] == "cannot tell"
    upside_down = {design: {10 - n: losses for n, losses in line.items()} for design, line in GRID.items()}
    told = agreement(cells(rows(**upside_down), suite="pocket")).set_index(["design", "question"])["verdict"]
    assert told["pre_ln", "deeper is better"] == told["hc", "deeper is better"] == "disagrees"


def test_a_published_slope_within_the_reading_has_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = published.table("val_loss_400m")
    flat = curve.assign(value=3.0 + 0.001 * (curve["n_layers"] % 3).astype(float))
    monkeypatch.setattr(published, "table", lambda name: flat)
    found = published_slope("pre_ln")
    assert found and found.sign == 0
    assert published_slope("nobody") is None
    alone, beside = published_slope("hc"), published_slope("hc", baseline="pre_ln")
    assert alone and beside and beside.slope == pytest.approx(0, abs=1e-12)  # the same numbers at every shared depth
    shared = set(curve[curve["design"] == "hc"]["n_layers"]) & set(curve[curve["design"] == "pre_ln"]["n_layers"])
    aspects = curve[(curve["design"] == "hc") & curve["n_layers"].isin(shared)]["aspect_ratio"].to_list()
    assert beside.error == pytest.approx(2 * 0.001 * np.abs(weights(aspects)).sum())  # both curves are read
