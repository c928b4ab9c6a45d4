"""How long does one forward pass take, and what does it hold, at every shape of a budget? Rows for the cost chapter.

    python benchmarks/prefill.py                                         # a small budget, one CPU thread, minutes
    python benchmarks/prefill.py --suite main-400m --device cuda --dtype bf16 --seq-len 4096     # Figure 11

At each shape all designs live in one process and take turns, so that a ratio to Pre-LN is of the same minute. On a CPU
time is CPU time of the process; on a GPU wall time between two waits. The logits are of the last token only, as in
serving. Memory is the rise over one pass, weights left out: of the allocator on a GPU, on a CPU of the resident set of
a process of its own. A row is written as soon as a shape is done, and a setting that has one is not measured again
(--again does): Ctrl-C loses one shape.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import depthbench as db
from depthbench import provenance
from depthbench.costs import PrefillRow, append_prefill, prefill_flops
from depthbench.costs.measured import PREFILL, read_prefill
from depthbench.shapes import InfeasibleShape

BASELINE = "pre_ln"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# The paper's depths at a budget that two CPU cores pass through in minutes.
SMALL: dict[str, Any] = {"total": 12e6, "n_heads": 4, "vocab_size": 512}
DEPTHS = (8, 12, 16, 24, 32, 42)


def shapes_of(args: argparse.Namespace) -> list[db.Shape]:
    if args.suite:
        found = {shape.n_layers: shape for shape in db.SUITES[args.suite].shapes}
        return [found[n] for n in args.n_layers or found]
    return [db.solve(n_layers=n, **SMALL | {"total": args.total}) for n in args.n_layers or DEPTHS]


@torch.inference_mode()
def prefill(model: Any, ids: Tensor) -> Tensor:
    """Logits (B, 1, V) of the last token of ids (B, T)."""
    return model(ids, logits_to_keep=1)


def seconds_of(model: Any, ids: Tensor) -> float:
    if ids.device.type == "cuda":
        torch.cuda.synchronize()
        start = time.perf_counter()
        prefill(model, ids)
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    prefill(model, ids)
    return time.process_time() - start


def build(design: str, shape: db.Shape, args: argparse.Namespace) -> Any:
    model: Any = db.build_model(design, shape, device=args.device, dtype=DTYPES[args.dtype]).eval()
    if args.compile:
        for block in model.blocks.values():
            block.apply_compile()
    return model


def batch_of(shape: db.Shape, args: argparse.Namespace, length: int = 0) -> Tensor:
    size = args.batch, length or args.seq_len
    return torch.randint(0, shape.vocab_size, size, generator=torch.Generator().manual_seed(0)).to(args.device)


def peak_bytes(design: str, shape: db.Shape, args: argparse.Namespace, model: Any) -> int | None:
    """Rise of memory over one pass; None where this machine does not tell."""
    if args.device.startswith("cuda"):
        ids = batch_of(shape, args)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        prefill(model, ids)
        return torch.cuda.max_memory_allocated() - before
    if args.no_peak or not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, __file__, "--peak-of", design, "--shape-json", shape.model_dump_json()]
    for name in ("seq_len", "batch", "threads", "dtype"):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])


def print_peak(args: argparse.Namespace) -> None:
    shape = db.Shape.model_validate_json(args.shape_json)
    model = build(args.peak_of, shape, args)
    prefill(model, batch_of(shape, args, 8))  # libraries are loaded
    model.blocks["0"].attention.rope.warmup_cache(args.seq_len, torch.device(args.device))
    ids = batch_of(shape, args)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of building it
    before = rss("VmRSS")
    prefill(model, ids)
    print(rss("VmHWM") - before)


def rss(which: str) -> int:
    found = re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found.group(1))


def measure(shape: db.Shape, names: list[str], args: argparse.Namespace, wanted: set[str], bar: Any) -> None:
    """Measure the designs `names` at a shape in turns and write the rows of those that are wanted."""
    ids, started = batch_of(shape, args), provenance.now()
    models = {name: build(name, shape, args) for name in names}
    turns: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(args.turns + 1):
        for name, model in models.items():
            bar.set_postfix_str(f"L={shape.n_layers} {name}, turn {turn} of {args.turns}")
            seconds = seconds_of(model, ids)
            if turn:  # the first warms up
                turns[name].append(seconds)
    rows = []
    for name, model in models.items():
        if name not in wanted:
            continue
        bar.set_postfix_str(f"L={shape.n_layers} {name}, memory")
        peak = peak_bytes(name, shape, args, model)
        rows.append(row_of(name, shape, args, turns, peak, started, model))
    for row in rows:
        append_prefill(row, args.out)
        spread = f"{min(row.seconds):.4f} to {max(row.seconds):.4f} s"
        bar.write(
            f"L={shape.n_layers:3} d={shape.d_model:4} {row.design:14} {statistics.median(row.seconds):.4f} s "
            f"({spread}), {statistics.median(row.ratios):.2f} x Pre-LN, {(row.peak_bytes or 0) / 1e6:.0f} MB"
        )


def row_of(
    name: str,
    shape: db.Shape,
    args: argparse.Namespace,
    turns: dict[str, list[float]],
    peak: int | None,
    started: str,
    model: Any,
) -> PrefillRow:
    return PrefillRow(
        suite=args.suite,
        design=name,
        options={},
        shape=shape.model_dump(),
        params_total=shape.num_params(name).total,
        seq_len=args.seq_len,
        batch_size=args.batch,
        clock="wall" if args.device.startswith("cuda") else "process",
        seconds=tuple(turns[name]),
        ratios=tuple(a / b for a, b in zip(turns[name], turns[BASELINE], strict=True)),
        flops=args.batch * prefill_flops(name, shape, args.seq_len),
        weight_bytes=sum(p.nbytes for p in model.parameters()),
        peak_bytes=peak,
        provenance=provenance.of_this_process(
            torch.device(args.device),
            dtype=args.dtype,
            compile=args.compile,
            microbatch_tokens=args.batch * args.seq_len,
            started=started,
        ),
    )


def missing(shape: db.Shape, args: argparse.Namespace, done: set[str]) -> list[str]:
    """The designs of a shape whose setting has no row yet."""
    if args.again:
        return list(args.designs)
    empty: dict[str, list[float]] = {name: [1.0] for name in (*args.designs, BASELINE)}
    nothing = torch.nn.Module()
    probe = {name: row_of(name, shape, args, empty, None, "", nothing).setting() for name in args.designs}
    return [name for name in args.designs if probe[name] not in done]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=db.SUITES, help="shapes of a suite, all as Pre-LN's")
    parser.add_argument("--total", type=float, default=SMALL["total"], help="budget in parameters, without --suite")
    parser.add_argument("--n-layers", type=int, nargs="+", help=f"depths (default: the suite's, or {DEPTHS})")
    parser.add_argument("--designs", nargs="+", default=list(db.designs.names()), choices=db.designs.names(extras=True))
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--compile", action="store_true", help="compile blocks as training does")
    parser.add_argument("--turns", type=int, default=5, help="turns that count, after one that does not")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--no-peak", action="store_true", help="leave the peak memory of a CPU out")
    parser.add_argument("--again", action="store_true", help="measure settings that have a row too")
    parser.add_argument("--out", type=Path, default=PREFILL, help="file of rows that gets more (default: %(default)s)")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    parser.add_argument("--shape-json", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in ("seq_len", "batch", "turns", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    if args.suite and args.n_layers:
        depths = [shape.n_layers for shape in db.SUITES[args.suite].shapes]
        if unknown := sorted(set(args.n_layers) - set(depths)):
            parser.error(f"suite {args.suite} has no shape of {unknown} layers; it has {depths}")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no GPU here; use --device cpu")
    return args


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    if args.peak_of:
        return print_peak(args)
    os.environ.setdefault("DEPTHBENCH_COMMAND", " ".join(["python benchmarks/prefill.py", *sys.argv[1:]]))
    done = {row.setting() for row in read_prefill(args.out)}
    try:
        shapes = shapes_of(args)
    except InfeasibleShape as error:
        sys.exit(f"--total {args.total:g}: {error}")
    todo = [(shape, missing(shape, args, done)) for shape in shapes]
    todo = [(shape, names) for shape, names in todo if names]
    if not todo:
        print(f"every setting has a row in {args.out}; --again measures them again")
        return
    with tqdm(todo, unit="shape") as bar:
        for shape, names in bar:
            measure(shape, list(dict.fromkeys([BASELINE, *names])), args, set(names), bar)


if __name__ == "__main__":
    main()
