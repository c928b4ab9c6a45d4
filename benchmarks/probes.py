"""What do causal and permutation scores cost, against the plain loop over whole passes, and are they equal to it?

    python benchmarks/probes.py                                  # L=32: the table of PROBES.md
    python benchmarks/probes.py --designs pre_ln moda --n-layers 16 --out /tmp/probes.md

A plain loop runs the model from the embedding for every layer left out, and for every pair swapped. Its cost is counted
in whole forward passes, head and all, timed in turns with the probe in the same process: CPU time of one thread. The
values of both are compared in float64, at a narrower shape of the same depth.
"""

from __future__ import annotations

import argparse
import datetime as dt
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import depthbench as db
from depthbench.probes import swapped
from depthbench.probes.causal import layers, norm
from depthbench.probes.late import first_late_layer, late_scores
from depthbench.probes.losses import window_loss
from depthbench.probes.views import walk
from depthbench.shapes import feed_forward_width

RESULTS = Path(__file__).with_name("PROBES.md")
TARGET = 0.55
DESIGNS = ("pre_ln", "hc", "mhc", "full_attnres", "block_attnres", "moda")


def plain_causal(model: Any, ids: Tensor) -> np.ndarray:
    """The paper's score from whole passes, (L, L)."""
    path = walk(model)
    n = path.n_layers
    whole = list(layers(path, path.open(ids), 0))
    score = np.full((n, n), np.nan)
    for s in range(n):
        state = path.skip(s, path.run(path.open(ids), stop=s), "silent")
        for l, layer in enumerate(layers(path, state, s + 1), s + 1):
            ratio = norm(layer.update - whole[l].update) / norm(whole[l].update)
            score[s, l] = float(ratio.mean())
    return score


def plain_permutation(model: Any, ids: Tensor) -> np.ndarray:
    """|L_swap - L| / L of the late pairs from whole passes, (L, L), NaN elsewhere."""

    def loss() -> float:
        nll = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        return float(nll)

    n, before = model.n_layers, loss()
    score = np.full((n, n), np.nan)
    for a in range(first_late_layer(n), n):
        for b in range(a + 1, n):
            with swapped(model, a, b):
                score[a, b] = abs(loss() - before) / before
    return score


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def build(design: str, shape: db.Shape, dtype: torch.dtype) -> Any:
    """A model whose layers all do something: weights three times as wide as at the start."""
    model = db.build_model(design, shape, dtype=dtype, init_std=0.06)
    return model.eval()


@torch.no_grad()
def difference(design: str, args: argparse.Namespace) -> tuple[float, float]:
    """Largest relative difference to the plain loops, in float64."""
    shape = db.Shape(n_layers=args.n_layers, d_model=32, n_heads=2, d_ff=64, vocab_size=64)
    model, ids = build(design, shape, torch.float64), batch(64, 2, 8)
    first = first_late_layer(args.n_layers)
    causal = db.probes.causal_scores(model, ids, progress=False)["score"]
    swaps = db.probes.permutation_scores(model, ids, first_layer=first, progress=False)
    permutation = db.probes.permutation_score(swaps)
    out = []
    for found, plain in ((causal, plain_causal(model, ids)), (permutation, plain_permutation(model, ids))):
        if not (np.isnan(found) == np.isnan(plain)).all():
            raise AssertionError(f"{design}: the probe and the plain loop score different pairs")
        out.append(float(np.nanmax(np.abs(found - plain)) / np.nanmax(plain)))
    return out[0], out[1]


def batch(vocab_size: int, rows: int, length: int) -> Tensor:
    return torch.randint(0, vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))


def pass_seconds(model: Any, ids: Tensor) -> float:
    """One whole forward pass, the median of seven."""
    return statistics.median(cpu_seconds(lambda: model(ids)) for _ in range(7))


def head_seconds(model: Any, ids: Tensor) -> float:
    """The end, the head and the loss of a pass, the median of seven."""
    path = walk(model)
    end = path.run(path.open(ids))
    return statistics.median(cpu_seconds(lambda: window_loss(path, end, ids)) for _ in range(7))


@torch.no_grad()
def costs(design: str, args: argparse.Namespace) -> dict[str, float]:
    """Ratios of one design: causal scores to L + 1 passes, a late pair to one pass, and their floors; medians."""
    shape = db.Shape(
        n_layers=args.n_layers,
        d_model=args.d_model,
        n_heads=args.n_heads,
        d_ff=feed_forward_width(args.d_model),
        vocab_size=args.vocab_size,
    )
    model, ids = build(design, shape, torch.float32), batch(args.vocab_size, args.batch, args.length)
    n, first = args.n_layers, first_late_layer(args.n_layers)
    pairs = len(late_scores(np.zeros((n, n))))
    model(ids)
    found: dict[str, list[float]] = {}
    for _ in range(args.turns):
        first_pass = pass_seconds(model, ids)
        c = cpu_seconds(lambda: db.probes.causal_scores(model, ids, progress=False))
        second_pass = pass_seconds(model, ids)
        p = cpu_seconds(lambda: db.probes.permutation_scores(model, ids, first_layer=first, progress=False))
        third_pass = pass_seconds(model, ids)
        least_causal, least_pair = floors(layer_seconds(model, ids))
        of_turn = {
            "causal": c / ((n + 1) * (first_pass + second_pass) / 2),
            "permutation": p / (pairs * (second_pass + third_pass) / 2),
            "causal floor": least_causal,
            "permutation floor": least_pair,
            "head": head_seconds(model, ids) / third_pass,
            "pass": second_pass,
        }
        for name, value in of_turn.items():
            found.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def layer_seconds(model: Any, ids: Tensor) -> np.ndarray:
    """Each layer alone, from the state before it, (L,): the least of seven, taken in turns, so that load cancels."""
    path = walk(model)
    least = np.full(path.n_layers, np.inf)
    for _ in range(7):
        state = path.open(ids)
        for l in range(path.n_layers):
            start = time.process_time()
            state = path.run(state, l, l + 1)
            least[l] = min(least[l], time.process_time() - start)
    return least


def floors(layers: np.ndarray) -> tuple[float, float]:
    """The layers that must run, as a share of the plain loop's: all causal scores, and the mean late pair.

    Layers need not cost alike: where all earlier outputs are sources the last ones, which run most often, cost most.
    """
    n, whole = len(layers), layers.sum()
    onwards = np.append(np.cumsum(layers[::-1])[::-1], 0.0)  # (L + 1): the layers from l on
    starts = [a for a in range(first_late_layer(n), n) for _ in range(a + 1, n)]
    return float(onwards.sum() / ((n + 1) * whole)), float(onwards[starts].mean() / whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", nargs="+", default=DESIGNS, choices=db.designs.names(extras=True))
    parser.add_argument("--n-layers", type=int, default=32)
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--n-heads", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    even_causal, even_pair = floors(np.ones(args.n_layers))
    rows = []
    for design in args.designs:
        cost, (causal_gap, pair_gap) = costs(design, args), difference(design, args)
        met = [
            f"{cost[name]:.3f}{'' if cost[name] <= TARGET else ' **missed**'} | {cost[f'{name} floor']:.3f}"
            for name in ("causal", "permutation")
        ]
        rows.append(
            f"| {db.designs.get(design).label} | {met[0]} | {met[1]} | {cost['head']:.3f} | {1e3 * cost['pass']:.0f} "
            f"| {causal_gap:.0e} | {pair_gap:.0e} |"
        )
        print(rows[-1], flush=True)
    told = [
        "# What causal and permutation scores cost",
        "",
        "Written by `benchmarks/probes.py`; do not edit by hand.",
        "",
        f"L={args.n_layers}, d={args.d_model}, {args.n_heads} heads, vocabulary {args.vocab_size}, batch {args.batch}, "
        f"T={args.length}, {args.turns} turns, float32, 1 thread, torch {torch.__version__}, {platform.machine()}, "
        f"{dt.date.today()}.",
        "",
        f"Targets: {TARGET} of L + 1 passes for all causal scores; {TARGET} of one whole pass for each late pair. "
        "A floor is the share of the plain loop's layers that must run, each weighed by its own time: "
        f"{even_causal:.3f} and {even_pair:.3f} where all layers cost the same, more where late ones, which run most "
        "often, have more to read. A pair needs the head too, a larger share of a pass where the vocabulary is large. "
        "Gaps are to the plain loop over whole passes, in float64 at d=32: the largest, relative to the largest score.",
        "",
        "| design | causal / (L + 1) passes | its floor | late pair / pass | its floor | head / pass | pass, ms "
        "| gap, causal | gap, pairs |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    args.out.write_text("\n".join(told))


if __name__ == "__main__":
    main()
