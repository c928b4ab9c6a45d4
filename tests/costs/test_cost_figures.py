"""Figures of costs: what is drawn is the frame, in words too; frames that cannot be drawn say why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import depthbench as db
from depthbench import costs, figures
from depthbench.costs.measured import _COLUMNS

SHAPES = [db.SUITES["main-400m"].shape(n) for n in (16, 32, 70)]
NAMES = ["pre_ln", "hc", "full_attnres"]


def points_of(figure: Figure, axis: int, label: str) -> tuple[np.ndarray, np.ndarray]:
    """x and y of the one line or marker set with a label."""
    handles, labels = figure.axes[axis].get_legend_handles_labels()
    found: Any = handles[labels.index(label)]
    line = found[0] if isinstance(found, tuple) else found
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


def measured() -> pd.DataFrame:
    """Rows as `load_prefill` gives them, of two designs at three shapes."""
    row = dict.fromkeys(_COLUMNS, "x") | {"seq_len": 8, "batch_size": 1, "n_threads": 1, "clock": "process"}
    rows = [
        row
        | {"design": design, "aspect_ratio": shape.aspect_ratio, "n_layers": shape.n_layers, "seconds": s + 0.1 * i}
        | {"seconds_min": s - 0.1, "seconds_max": s + 1.0, "peak_bytes": 2e6 * (i + 1)}
        for s, design in ((1.0, "pre_ln"), (2.0, "hc"))
        for i, shape in enumerate(SHAPES)
    ]
    return pd.DataFrame(rows)


def test_prefill_and_cache_draws_the_closed_forms_and_the_published() -> None:
    table = costs.summary(NAMES, SHAPES)
    figure = figures.prefill_and_cache(table, pd.DataFrame({"aspect_ratio": [76.0], "tflop": [3.0]}))
    for name in NAMES:
        own = table[table.design == name].sort_values("aspect_ratio")
        x, y = points_of(figure, 0, figures.style(name).label)
        np.testing.assert_allclose(np.sort(x), own.aspect_ratio)
        np.testing.assert_allclose(sorted(y), sorted(own.prefill_flops / 1e12))
    assert points_of(figure, 0, "published")[1] == [3.0]
    (line,) = figure.axes[1].get_lines()
    np.testing.assert_allclose(
        sorted(np.asarray(line.get_ydata())), [costs.kv_cache_bytes("hc", s) / 1e6 for s in SHAPES]
    )
    assert "Full AttnRes from 2.99 to 4.43" in figures.alt_text(figure)
    assert "319 to 734 MB" in figures.alt_text(figure)


def test_deep_and_narrow_is_to_the_right() -> None:
    for ax in figures.prefill_and_cache(costs.summary(NAMES, SHAPES)).axes:
        left, right = ax.get_xlim()
        assert left > right


def test_measured_prefill_draws_medians_and_memory() -> None:
    rows = measured()
    figure = figures.prefill_measured(rows)
    x, y = points_of(figure, 1, "HC")
    np.testing.assert_allclose(x, [s.aspect_ratio for s in SHAPES])
    np.testing.assert_allclose(y, [2, 4, 6])
    _, seconds = points_of(figure, 0, "HC")
    np.testing.assert_allclose(seconds, [2.0, 2.1, 2.2])
    assert "HC 2.00 to 2.20 s, 2 to 6 MB" in figures.alt_text(figure)
    assert "Pre-LN 1.00 to 1.20 s, 2 to 6 MB" in figures.alt_text(figure)


@pytest.mark.parametrize("column", ["device", "dtype", "seq_len", "clock"])
def test_measured_prefill_of_two_settings_is_refused(column: str) -> None:
    rows = measured()
    rows[column] = [*rows[column][:-1], "other"]
    with pytest.raises(ValueError, match=f"rows mix {column}"):
        figures.prefill_measured(rows)


def test_memory_that_was_not_measured_is_left_out() -> None:
    figure = figures.prefill_measured(measured().assign(peak_bytes=None))
    assert "MB" not in figures.alt_text(figure)


def test_moved_vs_flops_draws_every_design_at_one_shape() -> None:
    table = costs.summary(NAMES, SHAPES[1])
    figure = figures.moved_vs_flops(table)
    for row in table.itertuples():
        (x,), (y,) = points_of(figure, 0, figures.style(str(row.design)).label)
        assert x == pytest.approx(costs.residual_cost(str(row.design), SHAPES[1]).product_flops / 1e6)
        assert y == pytest.approx(costs.bytes_moved_per_token(str(row.design), SHAPES[1]) / 1e6)
    with pytest.raises(ValueError, match="several shapes"):
        figures.moved_vs_flops(costs.summary(NAMES, SHAPES))


def test_loss_vs_cost_steps_through_the_front_alone() -> None:
    points = costs.pareto(
        pd.DataFrame(
            {
                "design": ["hc", "pre_ln", "hc"],
                "n_layers": [2, 4, 8],
                "loss": [3.0, 3.2, 2.5],
                "train_flops": [1.0, 2.0, 4.0],
            }
        )
    )
    figure = figures.loss_vs_cost(points)
    x, y = points_of(figure, 0, "no point is better")
    assert list(x) == [1.0, 4.0]
    assert list(y) == [3.0, 2.5]
    assert list(points_of(figure, 0, "Pre-LN")[0]) == [2.0]
    words = figures.alt_text(figure)
    assert "HC with 2 layers, 3.000 nats; HC with 8 layers, 2.500 nats" in words
    assert "Pre-LN with" not in words


@pytest.mark.parametrize(
    "draw", [figures.prefill_and_cache, figures.prefill_measured, figures.moved_vs_flops, figures.loss_vs_cost]
)
def test_frames_that_lack_something_say_what(draw: Any) -> None:
    with pytest.raises(ValueError, match="lacks the columns"):
        draw(pd.DataFrame({"design": ["hc"]}))
