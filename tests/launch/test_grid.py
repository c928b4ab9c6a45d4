"""The grid of a suite, its states and its plan; the command line's errors."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock

import depthbench as db
from depthbench.records import recipe_key
from launch.__main__ import main, parser
from launch.grid import SPEC_FIELDS, jobs
from launch.notebooks import check_parameters, read
from launch.workers import parameters


def test_a_suite_is_its_designs_rates_and_shapes(tmp_path: Path) -> None:
    chosen = jobs("pocket", seeds=[0, 1], runs=tmp_path)
    assert len(chosen) == 2 * 3 * len(db.designs.names()) * len(db.SUITES["pocket"].shapes)
    assert len({job.spec.run_id for job in chosen}) == len(chosen)
    assert {job.spec.n_steps for job in chosen} == {db.SUITES["pocket"].n_steps}, "every run sees the same tokens"
    sweep = jobs("main-400m", design_names=["hc"], n_layers=[24], runs=tmp_path)
    assert [job.spec.lr for job in sweep] == [5e-4, 1e-3, 2e-3, 5e-3]
    assert {job.spec.n_steps for job in sweep} == {7600}


def test_filters_and_budget(tmp_path: Path) -> None:
    (job,) = jobs("pocket", design_names=["hc"], n_layers=[4], lrs=[1e-3], seeds=[5], tokens_per_param=2, runs=tmp_path)
    assert (job.spec.design, job.spec.shape.n_layers, job.spec.lr, job.spec.seed) == ("hc", 4, 1e-3, 5)
    assert job.spec.n_steps == round(2 * db.SUITES["pocket"].base.num_params().total / 2048)


def test_every_recipe_field_of_every_suite_is_used() -> None:
    grids = {"lrs", "lrs_by_design", "lrs_from", "seeds", "best_lr", "n_tokens"}
    for suite in db.SUITES.values():
        assert set(suite.recipe) - grids <= SPEC_FIELDS, suite.name
        assert jobs(suite.name)


def test_states(tmp_path: Path) -> None:
    (job, *_) = jobs("pocket", design_names=["pre_ln"], n_layers=[2], runs=tmp_path)
    assert job.state == "missing"
    job.run_dir.mkdir()
    (job.run_dir / "spec.json").write_text("{}")
    assert job.state == "cut"
    with FileLock(job.run_dir / "lock"):
        assert job.state == "running"


def test_job_fits_the_run_page(tmp_path: Path) -> None:
    from depthbench.paths import NOTEBOOKS

    (job, *_) = jobs("pocket", design_names=["hc"], n_layers=[2], tokens_per_param=1, runs=tmp_path)
    given = json.loads(json.dumps(parameters(job)))
    check_parameters(read(NOTEBOOKS / "run.md"), given, "run.md")
    shape = db.Shape(**{key: given[key] for key in db.Shape.model_fields})
    again = db.TrainSpec(
        **{key: given[key] for key in ("design", "options", "lr", "seed", "n_tokens", "data")},
        shape=shape,
        **given["recipe"],
    )
    assert again.run_id == job.spec.run_id


def test_unknown_parameter_of_a_page() -> None:
    from depthbench.paths import NOTEBOOKS

    with pytest.raises(ValueError, match=r"no parameter depth; its parameters: .*n_layers"):
        check_parameters(read(NOTEBOOKS / "run.md"), {"depth": 3}, "run.md")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "nothing"], "unknown suite 'nothing'; suites: .*pocket"),
        (["plan", "pocket", "--designs", "resnet"], "unknown design 'resnet'; registered designs: pre_ln"),
        (["run", "pocket", "--n-layers", "5"], r"no depth \[5\]; its depths: \[2, 4, 8, 16\]"),
        (["run", "pocket", "--lr", "-1"], "lr"),
        (["chapters", "nothing"], "no chapter nothing; chapters: .*shapes"),
    ],
)
def test_errors_name_what_is_allowed(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    import re

    assert main(arguments) == 2
    assert re.search(says, capsys.readouterr().err)


def test_dry_run_trains_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "pocket", "--designs", "pre_ln", "--seeds", "987654", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "12 runs: 12 missing" in out and " h on 1 worker" in out


def test_an_estimate_scales_the_nearest_measured_run(tmp_path: Path) -> None:
    from launch.grid import seconds

    at_2, at_4, at_16 = (
        jobs("pocket", design_names=["hc"], n_layers=[depth], runs=tmp_path)[0] for depth in (2, 4, 16)
    )
    row = {"design": "hc", "vocab_size": 512, "params_total": at_2.spec.shape.num_params("hc").total}
    slow, fast = (
        {"n_layers": 16, "d_model": 32, "tokens_per_s": 10.0},
        {"n_layers": 2, "d_model": 72, "tokens_per_s": 1e4},
    )
    measured = pd.DataFrame([row | slow, row | fast])
    tokens = at_2.spec.n_steps * 2048
    assert seconds(at_2, measured) == (tokens / 1e4, True)
    assert seconds(at_16, measured) == (tokens / 10.0, True)
    estimate, backed = seconds(at_4, measured)
    assert not backed and estimate == pytest.approx(tokens / 1e4, rel=0.05), "depth 2 is nearer to 4 than depth 16 is"


def swept_rows(suite: str, losses: dict[float, float], n_layers: int = 4) -> pd.DataFrame:
    """Rows of complete runs of HC at a suite's recipe, one a rate."""
    made = jobs(suite, design_names=["hc"], n_layers=[n_layers], lrs=sorted(losses), seeds=[0])
    return pd.DataFrame(
        {
            "suite": suite,
            "kind": "measured",
            "status": "complete",
            "recipe": recipe_key(job.spec.resolved()),
            "options": "{}",
            "design": job.spec.design,
            "lr": job.spec.lr,
            "seed": 0,
            "val_loss_nats": losses[job.spec.lr],
            **job.spec.shape.model_dump(),
        }
        for job in made
    )


def test_the_best_rate_on_record_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = swept_rows("pocket", {2.5e-3: 3.1, 5e-3: 3.0, 1e-2: 3.2})
    elsewhere = rows.assign(recipe="another", val_loss_nats=[1.0, 9.0, 9.0])  # other tokens or data: no evidence here
    monkeypatch.setattr("launch.grid.load_runs", lambda: pd.concat([rows, elsewhere]))
    for suite in ("pocket", "pocket-iso-backbone", "pocket-double"):  # the latter two take their rates from the first
        chosen = jobs(suite, design_names=["hc"], lrs="best", seeds=[0], runs=tmp_path)
        assert {job.spec.lr for job in chosen} == {5e-3} and len(chosen) == len(db.SUITES[suite].shapes)
    assert main(["best", "pocket"]) == 0 and "--lr" not in capsys.readouterr().out
    monkeypatch.setattr("launch.grid.load_runs", lambda: rows[rows.lr < 6e-3])
    assert main(["best", "pocket"]) == 0
    assert "the highest tried; add one with --designs hc --n-layers 4 --lr 0.01" in capsys.readouterr().out
    assert main(["plan", "pocket", "--designs", "moda", "--lr", "best"]) == 2
    assert "no learning-rate sweep of 'moda'" in capsys.readouterr().err
    assert main(["plan", "pocket", "--lr", "best", "0.1"]) == 2 and "stands alone" in capsys.readouterr().err


def test_other_budgets_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pd.DataFrame({"run_id": ["a", "b"], "suite": "pocket", "status": "complete", "n_tokens": [747_520, 747_520]})
    none = db.load_runs("local", local=Path("/nonexistent"))
    monkeypatch.setattr("launch.verbs.records.load_runs", lambda: rows)
    monkeypatch.setattr("launch.grid.load_runs", lambda: none)
    assert main(["status", "pocket", "--designs", "pre_ln"]) == 0
    assert "2 complete runs of pocket with other settings: 2 at 747,520 tokens" in capsys.readouterr().out


def test_a_misspelt_parameter_stops_the_page() -> None:
    from depthbench.parameters import refuse_unknown

    known, hidden = {"design": str, "seed": int}, {"In": [], "get_ipython": None}
    refuse_unknown({"design": "hc", "seed": 1, "In": [], "get_ipython": 0, "_i": 0, "refuse_unknown": 0}, known, hidden)
    with pytest.raises(ValueError, match="no parameter desing; the parameters are design, seed"):
        refuse_unknown({"design": "hc", "seed": 1, "desing": "hc"}, known, hidden)


def test_help_of_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("plan", "run", "best", "status", "chapters", "notebooks", "keep"):
        with pytest.raises(SystemExit) as ended:
            parser().parse_args([verb, "--help"])
        assert ended.value.code == 0
        assert "usage" in capsys.readouterr().out
