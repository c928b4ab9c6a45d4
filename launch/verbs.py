"""What each verb of `python -m launch` does."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Literal, cast

import matplotlib
import pandas as pd

from depthbench import records
from depthbench.paths import BUILD, NOTEBOOKS, RESULTS, ROOT
from depthbench.run_folder import last_row, read_history
from launch.grid import Job, jobs, plan_frame, swept

OUTSIDE = 3


def chosen(options: argparse.Namespace) -> list[Job]:
    """The jobs a command line means."""
    return jobs(
        options.suite,
        design_names=options.designs,
        n_layers=options.n_layers,
        lrs=_rates(options.lr),
        seeds=options.seeds,
        tokens_per_param=options.tokens_per_param,
    )


def _rates(given: Sequence[float | str] | None) -> Sequence[float] | Literal["best"] | None:
    if given and "best" in given:
        if len(given) > 1:
            raise ValueError("--lr best stands alone: it chooses the rate of each design and depth")
        return "best"
    return cast(Sequence[float] | None, given)


def plan(options: argparse.Namespace, workers: int = 1) -> int:
    """Print each run, its state and its cost, and the total."""
    frame = plan_frame(chosen(options))
    left = frame[~frame.state.isin(["done", "diverged"])]
    with pd.option_context("display.width", 200, "display.max_rows", 500):
        print(frame.fillna("").to_string(index=False))
    hours = left.seconds.sum() / workers / 3600
    time = f"{hours:.2f} h" if hours < 1000 else f"{hours / 24 / 365:,.1f} years"
    rough = " (rough: some were never measured)" if (left["from"] == "rough").any() else ""
    counts = ", ".join(f"{count} {state}" for state, count in frame.state.value_counts().items())
    print(
        f"{len(frame)} runs: {counts}. "
        f"Left: {left.tokens.sum():,} tokens, about {time} on {workers} worker(s) here{rough}."
    )
    print_others(options, frame)
    return 0


def print_others(options: argparse.Namespace, frame: pd.DataFrame) -> None:
    """Say which complete runs of the suite these options do not mean: a budget left out is not lost work."""
    runs = records.load_runs()
    others = runs[(runs.suite == options.suite) & (runs.status == "complete") & ~runs.run_id.isin(frame.run_id)]
    if len(others):
        budgets = ", ".join(f"{count} at {tokens:,} tokens" for tokens, count in others.n_tokens.value_counts().items())
        print(f"Besides, {len(others)} complete runs of {options.suite} with other settings: {budgets}.")


def run(options: argparse.Namespace) -> int:
    """Run what is missing and resume what was cut; with --check, exit code 3 if a run falls outside its band."""
    todo = chosen(options)
    if options.dry_run:
        return plan(options, options.workers)
    left = [job for job in todo if job.state in ("missing", "cut")]
    busy = [job for job in todo if job.state == "running"]
    print(
        f"{options.suite}: {len(todo)} runs, {len(todo) - len(left) - len(busy)} done, "
        f"{len(busy)} running elsewhere, {len(left)} to do"
    )
    code = _run(left, options.workers) if left else 0
    if code or not options.check:
        return code
    from launch.check import compare

    answers = compare(chosen(options))
    for answer in answers:
        print(answer)
    return OUTSIDE if any(answer.inside is False for answer in answers) else 0


def _run(left: list[Job], workers: int) -> int:
    from depthbench import data
    from launch.workers import run_all

    for name in sorted({job.spec.data for job in left} - set(data.prepared())):
        # FineWeb-Edu is cut to what these runs read; the sets made from packages are as long as they are.
        need = max(job.spec.n_steps * job.spec.global_batch_tokens for job in left if job.spec.data == name)
        data.prepare(name, max_train_tokens=need if name == "fineweb-edu" else None)
    return run_all(left, workers)


def best(options: argparse.Namespace) -> int:
    """Print the best rate of each design and depth, and what to run where it lies at the edge of what was tried."""
    frame = swept(options.suite, options.tokens_per_param)
    frame = frame[frame.design.isin(options.designs or frame.design)]
    frame = frame[frame.n_layers.isin(options.n_layers or frame.n_layers)]
    if frame.empty:
        print(f"no runs of {options.suite} with these settings are on record")
        return 0
    shown = frame.assign(rates=[" ".join(f"{rate:g}" for rate in rates) for rates in frame.rates])
    print(shown.drop(columns="options").to_string(index=False, formatters={"lr": "{:g}".format}))
    for row in frame[frame.edge != ""].to_dict("records"):
        further = row["lr"] / 2 if row["edge"] == "low" else row["lr"] * 2
        print(
            f"{row['design']} at {row['n_layers']} layers: the best rate is the {row['edge']}est tried; "
            f"add one with --designs {row['design']} --n-layers {row['n_layers']} --lr {further:g}"
        )
    return 0


def status(options: argparse.Namespace) -> int:
    """Print states and a table of results."""
    frame = plan_frame(chosen(options))
    print(", ".join(f"{count} {state}" for state, count in frame.state.value_counts().items()))
    print_others(options, frame)
    done = frame[frame.val_loss.notna()]
    if len(done):
        print("mean validation loss, nats per token:")
        print(
            done.pivot_table(index=["design", "lr"], columns=["n_layers", "d_model"], values="val_loss")
            .round(4)
            .to_string()
        )
    for job in chosen(options):
        if job.state in ("running", "cut"):
            row = last_row(job.run_dir / "history.jsonl")
            print(f"{job.state} {job.spec.run_id}: step {row['step'] if row else 0} of {job.spec.n_steps}")
    return 0


def chapters(options: argparse.Namespace) -> int:
    """Execute chapters."""
    from launch.chapters import execute_all

    for path in execute_all(options.names, force=options.force):
        print(path.relative_to(BUILD.parent))
    print("`make html` renders them.")
    return 0


def figures(options: argparse.Namespace) -> int:
    """Execute chapters on other rows and export their figures."""
    from launch.figures import export_all, parse

    for path in export_all(options.names, parse(options.parameters), options.suite):
        print(path.relative_to(BUILD.parent))
    return 0


def notebooks(options: argparse.Namespace) -> int:
    """Write .ipynb files for plain papermill."""
    import jupytext

    from launch.notebooks import read

    target = BUILD / "notebooks"
    target.mkdir(parents=True, exist_ok=True)
    for source in sorted(NOTEBOOKS.glob("*.md")):
        jupytext.write(read(source), target / f"{source.stem}.ipynb", fmt="ipynb")
        print((target / f"{source.stem}.ipynb").relative_to(BUILD.parent))
    return 0


def keep(options: argparse.Namespace) -> int:
    """Copy finished local rows that `results/` lacks, with a thinned curve of each."""
    here = records.latest(records.COMMITTED_RUNS)
    added = 0
    for job in chosen(options):
        record = job.record
        if record is None or record == here.get(record.run_id):
            continue
        if record.provenance.dirty and not options.allow_dirty:
            print(f"left out {record.run_id}: made with uncommitted changes (--allow-dirty takes it)", file=sys.stderr)
            continue
        records.append(record, records.COMMITTED_RUNS)
        curve = pd.DataFrame(read_history(job.run_dir / "history.jsonl"))
        thin = curve[(curve.step % max(1, len(curve) // 100) == 0) | (curve.step == curve.step.max())]
        (RESULTS / "curves").mkdir(parents=True, exist_ok=True)
        thin.to_csv(RESULTS / "curves" / f"{record.run_id}.csv", index=False, float_format="%.6g")
        added += 1
    print(f"{added} rows added to {os.path.relpath(records.COMMITTED_RUNS, BUILD.parent)}")
    return 0


def picture(options: argparse.Namespace) -> int:
    """Draw the README's picture: published curves, and beside them the committed pocket rows."""
    from depthbench import published
    from depthbench.comparison import cells, recipes
    from depthbench.figures import alt_text, loss_vs_shape

    runs = records.load_runs("committed")
    found = recipes(cells(runs, suite="pocket"))  # one recipe: runs of other budgets are another question
    runs = runs[runs.run_id.isin({run_id for ids in found[0][1].run_ids for run_id in ids} if found else ())]
    curves = published.table("val_loss_400m")
    figure = loss_vs_shape(curves, runs if len(runs) else None)
    target = ROOT / "book" / "_static" / "picture.svg"
    # No date and fixed element ids: the same rows draw the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "depthbench"}):
        figure.savefig(target, metadata={"Date": None, "Description": alt_text(figure)}, bbox_inches="tight")
    print(target.relative_to(ROOT))
    return 0
