"""What the figures of the probes draw is what the probes found, beside the control, and readable in grey."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import depthbench as db
from depthbench import figures, probes
from depthbench.figures.probes_maps import COLORMAP

from .common import QUIET, SHAPE, random_model, tokens

IDS = tokens(4, 6)


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[Any, Any]]:
    """A model with random parameters in the place of a trained one, and the one before its first step."""
    out = {}
    for design, options in (("hc", {}), ("block_attnres", {"block_size_sublayers": 4})):
        spec = db.TrainSpec(design=design, shape=SHAPE, lr=1e-3, options=options)
        out[design] = random_model(design, **options), probes.at_step_0(spec)
    return out


def both(probe: Any, models: dict[str, tuple[Any, Any]], *names: str) -> tuple[list[Any], list[Any]]:
    pairs = [[probe(model, IDS, **QUIET) for model in models[name]] for name in names]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def check(figure: Figure, panels: int) -> None:
    figure.canvas.draw()
    shown = [ax for ax in figure.axes if ax.get_visible() and ax.get_xlabel()]
    assert len(shown) == panels and len(figures.alt_text(figure)) > 80
    assert all(ax.get_ylabel() for ax in shown)


@pytest.mark.parametrize(
    ("draw", "probe", "matrix"),
    [
        (figures.causal_map, probes.causal_scores, lambda r: r["score"]),
        (figures.permutation_map, probes.permutation_scores, probes.permutation_score),
        (figures.path_weight_map, probes.path_weights, lambda r: r["weight"]),
    ],
)
def test_maps_show_the_arrays(draw: Any, probe: Any, matrix: Any, models: dict[str, tuple[Any, Any]]) -> None:
    trained, step_0 = both(probe, models, "hc", "block_attnres")
    figure = draw(trained, step_0)
    check(figure, 4)
    titles = [ax.get_title() for ax in figure.axes[:4]]
    assert titles[0] == "HC, L = 3, trained" and titles[3] == "Block AttnRes, L = 3, step 0"
    limits = {ax.images[0].get_clim() for ax in figure.axes[:4]}
    assert len(limits) == 1
    for ax, result in zip(figure.axes, [*trained, *step_0], strict=False):
        assert np.array_equal(np.ma.filled(ax.images[0].get_array(), np.nan), matrix(result), equal_nan=True)
    check(draw(trained), 2)


def test_the_angular_map_is_by_lag(models: dict[str, tuple[Any, Any]]) -> None:
    trained, step_0 = both(probes.angular_distance, models, "hc")
    figure = figures.angular_map(trained, step_0, which="last_token")
    check(figure, 2)
    cells = figure.axes[0].images[0].get_array()
    for n in range(1, 4):
        for l in range(4 - n):
            assert cells[n - 1, l] == trained[0]["last_token"][l, l + n]
    extent = figure.axes[0].images[0].get_extent()
    assert list(extent) == [-0.5, 2.5, 0.5, 3.5]


def test_survival_curves_end_where_the_scores_do(models: dict[str, tuple[Any, Any]]) -> None:
    causal, permutation = (both(p, models, "hc") for p in (probes.causal_scores, probes.permutation_scores))
    figure = figures.late_survival(causal[0], permutation[0], causal[1], permutation[1])
    check(figure, 2)
    (trained, control, threshold) = figure.axes[0].get_lines()
    thresholds, shares = probes.survival(causal[0][0]["score"])
    assert np.array_equal(trained.get_xdata(), thresholds) and np.array_equal(trained.get_ydata(), shares)
    assert threshold.get_xdata()[0] == 0.45 and control.get_linewidth() < trained.get_linewidth()
    share = probes.share_above(causal[0][0]["score"], 0.45)
    assert f"HC, L = 3, causal above 0.45: {share:.0%}" in figures.alt_text(figure)


def test_curves_have_the_values_and_bands_of_documents(models: dict[str, tuple[Any, Any]]) -> None:
    pruning, lens = (both(p, models, "hc") for p in (probes.layer_pruning, probes.logit_lens))
    figure = figures.pruning_and_lens(pruning[0], lens[0], pruning[1], lens[1], which_lens="next")
    check(figure, 2)
    left, right = (ax.get_lines()[0] for ax in figure.axes)
    assert np.array_equal(left.get_ydata(), pruning[0][0]["loss_increase"])
    assert np.array_equal(right.get_ydata(), lens[0][0]["kl_final_to_layer"][1])
    assert len(figure.axes[0].collections) == len(figure.axes[1].collections) == 2
    edges = figure.axes[1].collections[0].get_paths()[0].vertices
    low, high = lens[0][0].bootstrap("kl_final_to_layer", lambda mean: mean[1])
    assert edges[:, 1].max() == pytest.approx(high.max()) and edges[:, 1].min() == pytest.approx(low.min())

    transport = both(probes.residual_transport, models, "hc")
    figure = figures.transport(*transport, which="energy")
    check(figure, 2)
    assert np.array_equal(figure.axes[0].get_lines()[0].get_ydata(), transport[0][0]["effective_rank_energy"])
    check(figures.contributions(*both(probes.branch_norms, models, "hc", "block_attnres")), 2)

    mixing = both(probes.depth_mixing, models, "block_attnres")
    figure = figures.running_sum(*mixing)
    check(figure, 2)
    line = figure.axes[0].get_lines()[0]
    assert list(line.get_xdata()) == [1, 2, 3, 5] and not np.isnan(line.get_ydata()).any()
    check(figures.depth_mixing_map(*mixing), 2)


def test_lightness_rises_with_the_value() -> None:
    colors = [to_rgb(matplotlib.colormaps[COLORMAP](x)) for x in np.linspace(0, 1, 50)]
    luminance = [0.2126 * r**2.2 + 0.7152 * g**2.2 + 0.0722 * b**2.2 for r, g, b in colors]
    assert (np.diff(luminance) > 0).all()


def test_results_of_another_probe_are_refused(models: dict[str, tuple[Any, Any]]) -> None:
    result = probes.layer_pruning(models["hc"][0], IDS, **QUIET)
    with pytest.raises(ValueError, match="draws results of causal_scores, got layer_pruning"):
        figures.causal_map([result])
    with pytest.raises(ValueError, match="no results to draw"):
        figures.angular_map([])
    with pytest.raises(ValueError, match="'entropy' or 'energy'"):
        figures.transport([probes.residual_transport(models["hc"][0], IDS, **QUIET)], which="s")


def test_reading_and_drawing_results_needs_no_model() -> None:
    code = "import sys; from depthbench import figures, probes; probes.load, probes.survival; print("
    code += "'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
