"""Figures: what is drawn equals the frame; published hollow, measured filled; colours that can be told apart."""

from __future__ import annotations

import itertools
from io import BytesIO
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.collections import FillBetweenPolyCollection, PathCollection
from matplotlib.colors import same_color, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

import depthbench as db
from depthbench import designs, figures, published

TEN = ["pre_ln", "sandwich_ln", "lns", "deepnorm", "keel", "hc", "mhc", "full_attnres", "block_attnres", "moda"]


def runs(n_seeds: int = 3, **change: Any) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = [
        {
            "suite": "pocket",
            "data_name": "packages-512",
            "design": design,
            "n_layers": shape.n_layers,
            "d_model": shape.d_model,
            "lr": 5e-3,
            "seed": seed,
            "status": "complete",
            "val_loss_nats": 3.0 + 0.02 * rng.normal(),
        }
        for design in designs.names()
        for shape in db.SUITES["pocket"].shapes
        for seed in range(n_seeds)
    ]
    return pd.DataFrame(rows).assign(**change)


def lines(ax: Axes) -> dict[str, Line2D]:
    return {str(line.get_label()): line for line in ax.get_lines() if not str(line.get_label()).startswith("_")}


@pytest.mark.parametrize("name", ["val_loss_400m", "val_loss_iso_backbone_300m"])
def test_published_points_are_the_frame(name: str) -> None:
    frame = published.table(name)
    (ax,) = figures.loss_vs_shape(frame).axes
    drawn = lines(ax)
    assert set(drawn) == {published.labels()[design] for design in frame["design"]}
    for design, rows in frame.groupby("design"):
        line, look = drawn[published.labels()[str(design)]], figures.style(str(design))
        rows = rows.sort_values("aspect_ratio")
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        order = np.argsort(x)
        np.testing.assert_allclose(x[order], rows["aspect_ratio"])
        np.testing.assert_allclose(y[order], rows["value"])
        assert same_color(line.get_markerfacecolor(), "white")  # hollow
        assert same_color(line.get_markeredgecolor(), look.color) and same_color(line.get_color(), look.color)
        assert line.get_marker() == look.marker
    assert not [c for c in ax.collections if isinstance(c, PathCollection | FillBetweenPolyCollection)]


def test_axis_says_which_way_is_deep() -> None:
    (ax,) = figures.loss_vs_shape(published.table("val_loss_400m")).axes
    left, right = ax.get_xlim()
    assert ax.get_xscale() == "log" and left > right
    assert "d_model / n_layers" in ax.get_xlabel() and "deep-narrow to the right" in ax.get_xlabel()
    assert "nats per token" in ax.get_ylabel()
    (top,) = ax.child_axes
    shown = dict(zip(top.get_xticks().round(6), (label.get_text() for label in top.get_xticklabels()), strict=True))
    assert shown == {round(shape.aspect_ratio, 6): str(shape.n_layers) for shape in db.SUITES["main-400m"].shapes}


def test_measured_panel_is_the_frame() -> None:
    frame = runs()
    figure = figures.loss_vs_shape(published.table("val_loss_400m"), frame)
    left, right = figure.axes
    assert "Published" in left.get_title() and "Measured" in right.get_title() and "packages-512" in right.get_title()
    assert len(lines(left)) == 10 and len(lines(right)) == len(designs.names())
    dots = np.concatenate([np.asarray(c.get_offsets()) for c in right.collections if isinstance(c, PathCollection)])
    expected = np.column_stack([frame["d_model"] / frame["n_layers"], frame["val_loss_nats"]])
    assert sorted(map(tuple, dots.round(9))) == sorted(map(tuple, expected.round(9)))
    for design, rows in frame.groupby("design"):
        look = figures.style(str(design))
        line = lines(right)[f"{look.label} (n=3)"]
        assert same_color(line.get_markerfacecolor(), look.color)  # filled
        means = rows.groupby(rows["d_model"] / rows["n_layers"])["val_loss_nats"].mean()
        order = np.argsort(np.asarray(line.get_xdata()))
        np.testing.assert_allclose(np.asarray(line.get_xdata())[order], means.index)
        np.testing.assert_allclose(np.asarray(line.get_ydata())[order], means)


def test_band_is_two_pooled_standard_errors() -> None:
    frame = runs(n_seeds=2).query("design == 'pre_ln'")
    ax = figures.loss_vs_shape(published.table("val_loss_400m"), frame).axes[1]
    (band,) = [c for c in ax.collections if isinstance(c, FillBetweenPolyCollection)]
    by_shape = [rows["val_loss_nats"].to_numpy() for _, rows in frame.groupby("n_layers")]
    pooled = sum(((y - y.mean()) ** 2).sum() for y in by_shape) / len(by_shape)  # two seeds: one degree of freedom each
    half = 2 * np.sqrt(pooled / 2)
    edges = {round(v, 9) for v in band.get_paths()[0].vertices[:, 1]}
    assert edges == {round(y.mean() + sign * half, 9) for y in by_shape for sign in (-1, 1)}


def test_one_seed_has_no_band() -> None:
    ax = figures.loss_vs_shape(published.table("val_loss_400m"), runs(n_seeds=1)).axes[1]
    assert not [c for c in ax.collections if isinstance(c, FillBetweenPolyCollection)]
    assert all(label.endswith("(n=1)") for label in lines(ax))


def test_unequal_seeds_are_told() -> None:
    frame = runs()
    frame = frame[~((frame["n_layers"] == 2) & (frame["seed"] > 0))]
    ax = figures.loss_vs_shape(published.table("val_loss_400m"), frame).axes[1]
    assert all(label.endswith("(n=1-3)") for label in lines(ax))
    bands = [c for c in ax.collections if isinstance(c, FillBetweenPolyCollection)]
    assert len(bands) == len(designs.names())
    assert all(band.get_paths()[0].vertices[:, 0].max() < 68 / 2 for band in bands)  # none at the shape of one seed


def point(lr: float, losses: list[float], diverged: int = 0) -> pd.DataFrame:
    n = len(losses) + diverged
    frame = runs(n_seeds=n).query("design == 'pre_ln' and n_layers == 4").assign(lr=lr)
    status = ["complete"] * len(losses) + ["diverged"] * diverged
    return frame.assign(val_loss_nats=losses + [float("nan")] * diverged, status=status)


def test_best_learning_rate() -> None:
    frame = pd.concat([point(1e-3, [3.0, 3.2]), point(2e-3, [3.1, 3.04]), point(5e-3, [3.5, 2.9])])
    best = figures.at_best_lr(frame)
    assert set(best["lr"]) == {2e-3} and list(best["val_loss_nats"]) == [3.1, 3.04]
    assert set(best.columns) == set(frame.columns)


def test_a_rate_that_diverges_does_not_win_by_its_survivors() -> None:
    frame = pd.concat([point(2e-3, [3.1, 3.0]), point(5e-3, [2.5], diverged=1)])
    assert set(figures.at_best_lr(frame)["lr"]) == {2e-3}
    assert set(figures.at_best_lr(point(5e-3, [2.5], diverged=1))["lr"]) == {5e-3}  # unless there is no other
    ax = figures.loss_vs_shape(published.table("val_loss_400m"), frame).axes[1]
    assert "best learning rate" in ax.get_title() and "1 diverged or stopped run not drawn" in ax.get_title()


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (runs().drop(columns=["suite", "status"]), "lacks the columns suite, status"),
        (pd.concat([runs(), runs(suite="main-400m")]), "mixes suite: main-400m, pocket"),
        (pd.concat([runs(), runs(data_name="fineweb-edu")]), "mixes data_name: fineweb-edu, packages-512"),
        (runs(status="diverged"), "no complete run"),
        (runs().iloc[:0], "no rows"),
        (runs(design="postnorm"), "postnorm"),
    ],
)
def test_frames_that_cannot_be_drawn(frame: pd.DataFrame, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        figures.loss_vs_shape(published.table("val_loss_400m"), frame)


def test_shapes_to_scale() -> None:
    shapes = db.SUITES["main-400m"].shapes
    (ax,) = figures.shapes_to_scale(shapes).axes
    drawn = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert [(p.get_width(), p.get_height()) for p in drawn] == [(s.d_model, s.n_layers) for s in shapes]
    ends = [(p.get_x(), p.get_x() + p.get_width()) for p in drawn]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ends))  # side by side
    lo, hi = ax.get_xlim()
    assert lo <= ends[0][0] and ends[-1][1] <= hi and ax.get_ylim()[1] > 70
    with pytest.raises(ValueError, match="no shapes"):
        figures.shapes_to_scale([])


def test_training_curve() -> None:
    history = pd.DataFrame({"tokens": [10, 20, 30], "loss": [6.0, 5.0, 4.5], "grad_norm": [1.0, 3.0, 0.5]})
    loss, norm = figures.training_curve(history).axes
    for ax, column in ((loss, "loss"), (norm, "grad_norm")):
        (line,) = ax.get_lines()
        np.testing.assert_array_equal(np.asarray(line.get_xdata()), history["tokens"])
        np.testing.assert_array_equal(np.asarray(line.get_ydata()), history[column])
    assert norm.get_yscale() == "log" and loss.get_yscale() == "linear"
    with pytest.raises(ValueError, match="grad_norm"):
        figures.training_curve(history.drop(columns="grad_norm"))


def test_alternative_text() -> None:
    said = figures.alt_text(figures.loss_vs_shape(published.table("val_loss_400m"), runs()))
    assert "HC 2.729 at 76.0 to 2.682 at 9.1" in said and "Measured here: pocket" in said and "\n" not in said
    assert "70 layers of width 640" in figures.alt_text(figures.shapes_to_scale(db.SUITES["main-400m"].shapes))
    with pytest.raises(ValueError, match="no alternative text"):
        figures.alt_text(plt.matplotlib.figure.Figure())


def test_figures_leave_nothing_behind() -> None:
    before, frame, measured = rcParams.copy(), published.table("val_loss_400m"), runs()
    copies = frame.copy(), measured.copy()
    for figure in (figures.loss_vs_shape(frame, measured), figures.shapes_to_scale(db.SUITES["pocket"].shapes)):
        figure.savefig(BytesIO(), format="svg")
    assert rcParams == before and plt.get_fignums() == []
    pd.testing.assert_frame_equal(frame, copies[0])
    pd.testing.assert_frame_equal(measured, copies[1])


def test_every_design_has_its_own_style() -> None:
    assert list(figures.PALETTE) == list(figures.MARKERS) == list(figures.LINESTYLES) == TEN
    assert len(set(figures.PALETTE.values())) == len(set(figures.MARKERS.values())) == 10
    shown = [figures.style(name) for name in dict.fromkeys((*TEN, *designs.names()))]
    assert len({(look.color, look.marker) for look in shown}) == len(shown)
    assert figures.style("hc").label == "HC"
    with pytest.raises(designs.UnknownDesign):
        figures.style("postnorm")


def test_a_new_design_takes_a_spare_style(monkeypatch: pytest.MonkeyPatch) -> None:
    card = designs.get("pre_ln")
    monkeypatch.setattr(designs, "names", lambda *, extras=False: ("pre_ln", "mine", "yours"))
    monkeypatch.setattr(designs, "get", lambda name: card)
    mine, yours = figures.style("mine"), figures.style("yours")
    assert mine != yours and {mine.color, yours.color}.isdisjoint(figures.PALETTE.values())
    assert {mine.marker, yours.marker}.isdisjoint(figures.MARKERS.values())


# Full colour-vision deficiency on linear RGB: Machado, Oliveira and Fernandes 2009, severity 1.0.
VISION = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(color: str, vision: Any) -> np.ndarray:
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(np.array(vision) @ linear, 0, 1) / XYZ.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
def test_colours_stay_apart(vision: str) -> None:
    seen = [lab(color, VISION[vision]) for color in figures.PALETTE.values()]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 18  # CIE76; 2.3 is just noticeable


def test_colours_in_grey_and_on_white() -> None:
    lightness = sorted(lab(color, VISION["normal"])[0] for color in figures.PALETTE.values())
    assert min(np.diff(lightness)) > 5
    luminance = [((value + 16) / 116) ** 3 if value > 8 else value / 903.3 for value in lightness]
    assert min(1.05 / (y + 0.05) for y in luminance) > 3
