"""`launch figures`: every figure of a chapter as SVG and PDF, with its numbers as CSV; `launch picture`: one recipe."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from depthbench import figures
from depthbench.figures.export import COLUMNS, drawn
from launch import verbs
from launch.figures import export_all, parse
from launch.notebooks import PageFailed, execute
from tests.comparison.rows import run_row

PAGE = """---
kernelspec: {display_name: Python 3, language: python, name: python3}
---

```{code-cell} ipython3
:tags: [parameters]

top: float = 3.0  # the last point
```

```{code-cell} ipython3
---
mystnb:
  figure:
    name: fig-line
---
import matplotlib.pyplot as plt

if top < 0:
    raise ValueError("top is negative")
figure, ax = plt.subplots()
ax.plot([1, 2], [1.0, top], label="up")
plt.close(figure)
figure
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lines.md").write_text(PAGE)
    monkeypatch.setattr("launch.figures.NOTEBOOKS", tmp_path)
    monkeypatch.setattr("launch.notebooks.NOTEBOOKS", tmp_path)
    monkeypatch.setattr("launch.figures.chapters.names", lambda: ["lines"])
    return tmp_path


def test_a_chapter_on_other_values_gives_its_figures_and_their_numbers(page: Path) -> None:
    written = list(export_all([], {"top": 7.5}, suite="pocket", target=page / "out"))
    assert [path.relative_to(page).as_posix() for path in written] == [
        f"out/lines/fig-line.{suffix}" for suffix in ("svg", "pdf", "csv")
    ]
    assert written[0].read_text().startswith("<?xml") and written[1].read_bytes().startswith(b"%PDF")
    rows = pd.read_csv(written[2])
    assert rows[["x", "y"]].to_numpy().tolist() == [[1, 1], [2, 7.5]] and set(rows["series"]) == {"up"}


def test_errors_name_the_chapter_and_what_is_allowed(page: Path) -> None:
    with pytest.raises(ValueError, match="no chapter curves; chapters: lines"):
        list(export_all(["curves"], {}))
    with pytest.raises(ValueError, match=r"lines.md has no parameter bottom; its parameters: top"):
        list(export_all([], {"bottom": 1}))
    with pytest.raises(PageFailed, match=r"lines.md: ValueError: top is negative"):
        execute(page / "lines.md", page / "out.ipynb", {"top": -1.0})
    assert parse(["a=1", "b=x=y", "c=[1, 2]"]) == {"a": 1, "b": "x=y", "c": [1, 2]}
    with pytest.raises(ValueError, match="takes name=value"):
        parse(["a"])


def test_what_a_figure_draws_is_read_off_its_artists() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2, 3], [4, 5, 6], label="line")
    left.axhline(9)  # spans the axis: no datum
    left.scatter([1, 2], [7, 8], label="dots")
    left.fill_between([1, 2], [0, 0], [1, 2], label="band")
    right.imshow(np.array([[1.0, np.nan], [3.0, 4.0]]), label="map")
    right.bar([0, 1], [5, 6])
    plt.close(figure)
    rows = drawn(figure)
    assert list(rows.columns) == COLUMNS
    by_kind = dict(iter(rows.groupby("kind")))
    assert set(by_kind) == {"line", "points", "band", "map", "bar"}
    assert by_kind["line"][["x", "y"]].to_numpy().tolist() == [[1, 4], [2, 5], [3, 6]]
    assert by_kind["points"][["x", "y"]].to_numpy().tolist() == [[1, 7], [2, 8]]
    assert by_kind["map"].set_index(["y", "x"])["value"].dropna().to_dict() == {(0, 0): 1, (1, 0): 3, (1, 1): 4}
    assert list(by_kind["bar"]["value"]) == [5, 6] and set(by_kind["map"]["panel"]) == {1}
    assert by_kind["band"]["y"].max() == 2
    assert drawn(plt.matplotlib.figure.Figure()).empty


def test_the_picture_is_of_one_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the budget with the most cells, and no others; without rows the published curves alone."""
    (tmp_path / "book/_static").mkdir(parents=True)
    rows = [run_row(n_layers=n, n_tokens=8_000_000) for n in (2, 4)] + [run_row(n_layers=2), run_row(suite="other")]
    shown: list[pd.DataFrame | None] = []
    draw = figures.loss_vs_shape
    monkeypatch.setattr(figures, "loss_vs_shape", lambda curves, runs: shown.append(runs) or draw(curves, runs))
    monkeypatch.setattr(verbs, "ROOT", tmp_path)
    for frame in (pd.DataFrame(rows), pd.DataFrame(rows)[:0]):
        monkeypatch.setattr(verbs.records, "load_runs", lambda origin, frame=frame: frame)
        assert verbs.picture(Namespace()) == 0
    assert shown[0] is not None and list(shown[0]["n_tokens"]) == [8_000_000, 8_000_000]
    assert shown[1] is None and (tmp_path / "book/_static/picture.svg").stat().st_size > 10_000
