"""Welch's rule as worked by hand, and no claim from one seed."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from depthbench.comparison import across_depth, cells, verdict
from tests.comparison.rows import run_row


def test_no_claim_without_two_seeds_a_side() -> None:
    assert verdict(2.0, math.nan, 1, 3.0, 0.1, 5).verdict == "one seed: cannot tell"
    assert verdict(2.0, 0.1, 5, 3.0, math.nan, 1).verdict == "one seed: cannot tell"
    assert verdict(2.0, 0.1, 3, 3.0, 0.1, 3).verdict.startswith("lower")
    assert verdict(3.0, 0.1, 3, 2.0, 0.1, 3).verdict.startswith("higher")
    assert verdict(2.9, 0.1, 3, 3.0, 0.1, 3).verdict.startswith("within")
    assert verdict(2.0, 0.1, 2, math.nan, math.nan, 0).verdict == "no baseline row at this depth"
    told = verdict(2.0, 0.3, 9, 3.0, 0.4, 16)
    assert told.gap_nats == -1.0 and told.gap_se == pytest.approx(math.sqrt(0.01 + 0.01))


@pytest.mark.parametrize(
    ("sd", "n", "base_sd", "base_n", "freedom", "half"),
    [
        # equal variances: v = 0.03^2 / 3 = 0.0003 a side, df = (2v)^2 / (2 v^2 / 2) = 4; 2.776 sqrt(0.0006) = 0.0680
        (0.03, 3, 0.03, 3, 4, 0.0680),
        # v = 0.0003 and 0.0012: df = 0.0015^2 / ((9e-8 + 144e-8) / 2) = 225 / 76.5 = 2.94, so 2;
        # 4.303 sqrt(0.0015) = 0.1667
        (0.03, 3, 0.06, 3, 2, 0.1667),
        # v = 0.0016 / 4 = 0.0004 and 0.0001 / 2 = 0.00005: df = 0.00045^2 / (0.0004^2 / 3 + 0.00005^2) = 3.63, so 3;
        # 3.182 sqrt(0.00045) = 0.0675
        (0.04, 4, 0.01, 2, 3, 0.0675),
        # no spread on one side: the other's degrees of freedom; 4.303 * 0.03 / sqrt(3) = 0.0745
        (0.03, 3, 0.0, 3, 2, 0.0745),
        # v = 0.01 and 0.01: df = 0.0004 / (0.0001 / 8 + 0.0001 / 15) = 20.9, so 20;
        # 2.086 sqrt(0.02) = 0.2950
        (0.3, 9, 0.4, 16, 20, 0.2950),
    ],
)
def test_welch_as_worked_by_hand(sd: float, n: int, base_sd: float, base_n: int, freedom: int, half: float) -> None:
    for gap, words in ((half + 1e-3, "higher"), (half - 1e-3, "within"), (-half - 1e-3, "lower")):
        told = verdict(3.0 + gap, sd, n, 3.0, base_sd, base_n)
        assert told.freedom == freedom and told.half_width == pytest.approx(half, abs=1e-4)
        assert told.verdict.startswith(words)
        assert verdict(3.0, base_sd, base_n, 3.0 + gap, sd, n).half_width == told.half_width


def test_seeds_without_spread_have_no_half_width() -> None:
    assert verdict(2.0, 0.0, 2, 2.0, 0.0, 2) == (0.0, 0.0, 0.0, 1, "within the noise of the seeds")
    assert math.isnan(verdict(2.0, math.nan, 1, 3.0, 0.1, 5).half_width)


def test_depth_is_judged_design_by_design_and_not_from_one_seed() -> None:
    losses = {
        ("hc", 2): (3.0, 3.01),
        ("hc", 8): (2.0, 2.01),
        ("hc", 4): (9.0,),
        ("pre_ln", 2): (3.0, 3.01),
        ("pre_ln", 8): (2.0,),
    }
    rows = [
        run_row(design=design, n_layers=n_layers, seed=seed, val_loss_nats=loss)
        for (design, n_layers), values in losses.items()
        for seed, loss in enumerate(values)
    ]
    table = across_depth(cells(pd.DataFrame(rows), suite="pocket")).set_index("design")
    assert list(table.index) == ["pre_ln", "hc"]  # the paper's order
    assert table.loc["hc", "gap_nats"] == pytest.approx(-1.0) and table.loc["hc", "verdict"].startswith("lower")
    assert table.loc["pre_ln", "verdict"] == "one seed: cannot tell"
