"""The live figures solve and show what the library does: JS against Python to the unit, payloads against frames."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
from dataclasses import asdict
from typing import Any

import pandas as pd
import pytest

import depthbench as db
from depthbench import figures, published
from depthbench.comparison import cells
from depthbench.interactive import loss_explorer, shape_explorer
from depthbench.interactive.chapter import unshared
from depthbench.interactive.explore_shapes import TOLERANCE, design_data, extra_polynomial, suite_data
from depthbench.interactive.figure import KINDS, source
from depthbench.shapes import InfeasibleShape
from tests.comparison.rows import run_row

NODE = shutil.which("node")


def run_js(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What solve.js answers to each request."""
    program = (
        f"{source('core.js')}\n{source('solve.js')}\n"
        "console.log(JSON.stringify(JSON.parse(require('fs').readFileSync(0, 'utf8')).map(solveShape)));"
    )
    done = subprocess.run(
        [str(NODE), "-e", program], input=json.dumps(requests), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def python_answer(request: dict[str, Any], design: str) -> db.Shape | None:
    how = {key: request[key] for key in ("n_layers", "n_heads", "n_kv_heads", "vocab_size", "ffn", "tolerance")}
    try:
        return db.solve(**{request["hold"]: request["budget"]}, design=design, **how)
    except InfeasibleShape:
        return None


def random_requests(n: int) -> list[tuple[str, dict[str, Any]]]:
    draw = random.Random(20260932)
    polynomials = {entry["design"]: entry["extra"] for entry in design_data()}
    out = []
    for _ in range(n):
        heads = draw.choice([1, 2, 3, 4, 8, 12, 16, 32])
        design = draw.choice(list(polynomials))
        request = {
            "hold": draw.choice(["total", "backbone"]),
            "budget": round(10 ** draw.uniform(5, 10)),
            "n_layers": draw.randint(1, 120),
            "n_heads": heads,
            "n_kv_heads": draw.choice([k for k in range(1, heads + 1) if heads % k == 0]),
            "vocab_size": draw.choice([256, 512, 32_000, 50_280, 151_936]),
            "ffn": draw.choice(["8d/3", "3d", "fill"]),
            "extra": polynomials[design],
            "tolerance": draw.choice([0.01, TOLERANCE, 0.5]),
        }
        out.append((design, request))
    return out


@pytest.mark.skipif(NODE is None, reason="node is not on the path; it runs solve.js without a browser")
def test_js_solves_as_python_does_to_the_unit() -> None:
    asked = random_requests(400)
    feasible = 0
    for (design, request), answer in zip(asked, run_js([r for _, r in asked]), strict=True):
        shape = python_answer(request, design)
        if shape is None:
            assert answer["problem"], request
            continue
        feasible += 1
        assert answer["shape"] == shape.model_dump(), request
        assert {k: answer["count"][k] for k in ("total", "backbone", "embedding", "design")} == asdict(
            shape.num_params(design)
        ), request
    assert 150 < feasible < 400, feasible  # both sides of the rule were exercised


@pytest.mark.skipif(NODE is None, reason="node is not on the path; it runs solve.js without a browser")
def test_js_gives_every_published_shape_from_its_suite_preset() -> None:
    keys = ("hold", "budget", "vocab_size", "n_heads", "n_kv_heads", "ffn")
    asked, expected = [], []
    for suite in db.SUITES.values():
        data = suite_data(suite)
        for shape in suite.shapes:
            asked.append({k: data[k] for k in keys} | {"n_layers": shape.n_layers, "extra": {}, "tolerance": TOLERANCE})
            expected.append(shape.model_dump())
    assert [answer["shape"] for answer in run_js(asked)] == expected


@pytest.mark.skipif(NODE is None, reason="node is not on the path; it runs solve.js without a browser")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_heads": 2.5}, "heads must be a whole number"),
        ({"vocab_size": 0}, "vocabulary must be a whole number"),
        ({"budget": -1}, "budget must be a positive number"),
        ({"n_kv_heads": 3}, "do not divide"),
        ({"budget": 1e6, "n_heads": 64, "n_kv_heads": 64}, "no width of 24 layers"),
    ],
)
def test_js_says_in_words_why_there_is_no_shape(change: dict[str, Any], words: str) -> None:
    data = suite_data(db.SUITES["main-400m"])
    request = {k: data[k] for k in ("hold", "budget", "vocab_size", "n_heads", "n_kv_heads", "ffn")}
    (answer,) = run_js([request | {"n_layers": 24, "extra": {}, "tolerance": TOLERANCE} | change])
    assert words in answer["problem"]


@pytest.mark.parametrize("design", db.designs.names())
def test_every_design_can_be_counted_on_the_page(design: str) -> None:
    assert extra_polynomial(design) is not None, (
        f"{design}: widen TERMS in explore_shapes.py and countParams in solve.js"
    )


def test_scripts_and_style_stay_small_and_ask_for_nothing() -> None:
    names = sorted({name for scripts, _ in KINDS.values() for name in scripts})
    text = {name: source(name) for name in names}
    assert sum(len(t.encode()) for t in text.values()) < 30_000
    for name, t in (text | {"figure.css": source("figure.css")}).items():
        assert t.count("\n") < 250, name
        assert t.isascii(), name
        assert "http" not in t.replace("http://www.w3.org/2000/svg", ""), name
        assert not any(word in t for word in ("fetch(", "XMLHttpRequest", "import(", "@import", "url(")), name


def val_loss() -> dict[str, pd.DataFrame]:
    return {"validation loss": published.table("val_loss_400m")}


def test_figures_are_the_same_twice_and_carry_the_frame() -> None:
    first, second = loss_explorer(val_loss(), live=False), loss_explorer(val_loss(), live=False)
    assert first.html() == second.html() and first.id == second.id
    assert first.id != shape_explorer(live=False).id
    table = published.table("val_loss_400m")
    shown = {(s["design"], p["n_layers"]): p["value"] for s in first.data["views"][0]["series"] for p in s["points"]}
    assert shown == {(r.design, r.n_layers): r.value for r in table.itertuples()}
    assert all(view["origin"] == "published" for view in first.data["views"])


def test_payload_cannot_close_its_script() -> None:
    table = published.table("val_loss_400m").assign(source="</script><b>x")
    assert "</script><b>" not in loss_explorer({"x": table}, live=False).html()


def test_live_twin_shows_the_same_and_is_only_made_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    still = shape_explorer()
    assert set(still._repr_mimebundle_()) == {"text/html", "text/plain"}
    figure = shape_explorer("main-400m", n_layers=70, live=True)
    assert "application/vnd.jupyter.widget-view+json" in figure._repr_mimebundle_()
    assert figure.widget.value == db.SUITES["main-400m"].shape(70)
    figure.widget.depth.value = 32
    assert figure.widget.value == db.SUITES["main-400m"].shape(32)
    figure.widget.heads.value = 7  # 16 key-value heads no longer divide
    assert figure.widget.value is None and "does not divide" in figure.widget.words.value
    loss = loss_explorer(val_loss(), live=True)
    loss.widget.highlight.value = "hc"
    assert "2.682" in loss.widget.words.value


def test_unknown_suite_or_design_is_said_in_words() -> None:
    with pytest.raises(KeyError, match="main-400m"):
        shape_explorer("main")
    with pytest.raises(KeyError, match="pre_ln"):
        shape_explorer(design="nope")
    with pytest.raises(ValueError, match="at least one"):
        loss_explorer({})


def test_measured_points_say_their_uncertainty_and_their_runs() -> None:
    rows = pd.DataFrame(
        [run_row(run_id="a", seed=0), run_row(run_id="b", seed=1, val_loss_nats=3.1), run_row(run_id="c", design="hc")]
    )
    data = loss_explorer(val_loss(), cells(rows, suite="pocket"), live=False).data
    (panel,) = data["measured"]
    text = {s["design"]: s["points"][0]["text"] for s in panel["series"]}
    band = {s["design"]: s["points"][0]["band"] for s in panel["series"]}
    # 3.0 and 3.1: variance 0.005, standard error 0.05, and two of them
    assert band == {"pre_ln": pytest.approx(0.1), "hc": 0.0} and "3.0500 +- 0.1000 nats" in text["pre_ln"]
    assert any("two standard errors" in note for note in panel["notes"])
    assert "sd over 2 seeds" in text["pre_ln"] and "a, b" in text["pre_ln"]
    assert "one seed" in text["hc"] and "evaluation noise alone" in text["hc"]
    assert any("one seed" in note for note in panel["notes"]) and panel["origin"] == "measured"
    (empty,) = loss_explorer(val_loss(), None, live=False).data["measured"]
    assert "python -m launch run pocket" in empty["empty"] and not empty["series"]


def test_the_live_band_is_the_printed_one() -> None:
    losses = {2: (3.0, 3.1), 4: (2.9, 2.92, 2.94), 8: (3.2,)}
    rows = pd.DataFrame(
        [
            run_row(n_layers=n_layers, seed=seed, val_loss_nats=loss)
            for n_layers, values in losses.items()
            for seed, loss in enumerate(values)
        ]
    )
    (panel,) = loss_explorer(val_loss(), cells(rows, suite="pocket"), live=False).data["measured"]
    # squares 0.005 and 0.0008 over 1 + 2 degrees of freedom; the shape of one seed has no band
    pooled = 0.0058 / 3
    expected = [2 * math.sqrt(pooled / 2), 2 * math.sqrt(pooled / 3), 0.0]
    assert [p["band"] for p in panel["series"][0]["points"]] == pytest.approx(expected)
    axis = figures.loss_vs_shape(published.table("val_loss_400m"), rows).axes[1]
    (drawn,) = [c for c in axis.collections if type(c).__name__ == "FillBetweenPolyCollection"]
    edges = {round(float(y), 9) for y in drawn.get_paths()[0].vertices[:, 1]}
    means = (3.05, 2.92)
    assert edges == {round(m + sign * h, 9) for m, h in zip(means, expected, strict=False) for sign in (-1, 1)}


def test_what_a_design_changes_beside_the_residual() -> None:
    names = ("pre_ln", "hc", "mhc", "deepnorm", "moda", "full_attnres")
    found = unshared(names, db.SUITES["pocket"].shape(2)).set_axis(list(names))
    assert (found.loc[["pre_ln", "full_attnres"]].drop(columns="design") == "-").all(axis=None)
    assert found.loc["hc", "start"] == found.loc["mhc", "start"] == "w_out, w2 times 0.50"
    assert found.loc["hc", "no_decay"] == ".static_alpha, .static_beta"
    assert found.loc["deepnorm", "norm"] == "LayerNorm"
    assert found.loc["deepnorm", "start"] == "w_v, w_out, w1, w2, w3 times 0.50"  # (8 * 2)^(-1/4)
    assert list(found.index[found["attention"] != "-"]) == ["moda"]
