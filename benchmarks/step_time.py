"""What does a training step of each design cost, against Pre-LN and against its plain form? Time, bytes, and the floor.

    python benchmarks/step_time.py                    # L=32, d=256: the table of RESULTS.md
    python benchmarks/step_time.py --growth           # L=8 .. 70 at fixed parameters, added to the same file

A step is forward, loss and backward; the optimiser's part is given apart (it is the same arithmetic on each parameter).
All models live in one process and take turns, and a turn is measured in CPU time of the process; a ratio is the median
over turns of the ratio to the Pre-LN step of the same turn. Bytes: what autograd keeps between forward and backward,
each storage counted once and parameters left out; and the rise of the process's peak memory over one step, in a process
of its own.
"""

from __future__ import annotations

import argparse
import datetime as dt
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from anchors import ANCHORED, anchor
from torch import Tensor, nn

import depthbench as db
from depthbench.shapes import feed_forward_width

RESULTS = Path(__file__).with_name("RESULTS.md")
DEPTHS = (8, 16, 32, 48, 70)
PLAIN = "plain:"  # prefix of a design's plain form
# Most that a design's step should take, in Pre-LN steps, at the default shape.
TARGETS = {"full_attnres": 1.4, "block_attnres": 1.25, "hc": 1.5, "mhc": 1.7, "moda": 1.5}
TARGETS |= dict.fromkeys(("sandwich_ln", "lns", "deepnorm", "keel"), 1.08)


def build(name: str, shape: db.Shape) -> nn.Module:
    torch.manual_seed(0)
    return anchor(name.removeprefix(PLAIN), shape) if name.startswith(PLAIN) else db.build_model(name, shape)


def base_shape(args: argparse.Namespace) -> db.Shape:
    own = {name: getattr(args, name) for name in ("n_layers", "d_model", "n_heads", "vocab_size")}
    return db.Shape(d_ff=feed_forward_width(args.d_model), **own)


def batch(shape: db.Shape, rows: int, length: int) -> Tensor:
    return torch.randint(0, shape.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())


def step(model: nn.Module, ids: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    loss_of(model, ids).backward()


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def kept_bytes(model: nn.Module, ids: Tensor) -> int:
    """Bytes of the distinct storages autograd keeps for the backward pass, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = loss_of(model, ids)
    del loss
    return sum(seen.values())


def rss(which: str) -> int:
    return 1024 * int(re.search(rf"{which}:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1))  # type: ignore[union-attr]


def memory(name: str, args: argparse.Namespace, shape: db.Shape) -> tuple[int, int]:
    """Bytes kept for the backward pass, and the rise of peak memory over one step without gradients of parameters.

    In a fresh process: the plain form of AttnRes takes gigabytes that an allocator would not give back.
    """
    command = [sys.executable, __file__, "--memory-of", name, "--shape-json", shape.model_dump_json()]
    command += ["--batch", str(args.batch), "--seq-len", str(args.seq_len), "--threads", str(args.threads)]
    kept, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-2:]
    return int(kept), int(peak)


def print_memory(args: argparse.Namespace) -> None:
    shape = db.Shape.model_validate_json(args.shape_json)
    small = batch(shape, 1, 8)
    model = build(args.memory_of, shape)
    step(model, small)  # gradients and libraries are in place
    before = rss("VmRSS")
    ids = batch(shape, args.batch, args.seq_len)
    loss_of(model, ids).backward()
    peak = rss("VmHWM") - before
    print(kept_bytes(model, ids), peak)


def matmul_rate(shape: db.Shape, n_tokens: int) -> float:
    """Best rate of the feed-forward's product on this machine, flop/s."""
    x, w = torch.randn(n_tokens, shape.d_model), torch.randn(shape.d_model, shape.d_ff)
    times = [cpu_seconds(lambda: [x @ w for _ in range(20)]) / 20 for _ in range(10)]
    return 2 * n_tokens * shape.d_model * shape.d_ff / min(times)


def step_flops(shape: db.Shape, rows: int, length: int) -> float:
    """Products of a Pre-LN step: 6 a weight and token, and the score matrix (as if not causal)."""
    weights = shape.num_params().total - shape.vocab_size * shape.d_model
    return 6 * weights * rows * length + 12 * shape.n_layers * shape.d_model * rows * length**2


def measure(names: list[str], shape: db.Shape, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Per name: seconds (least), ratio (median of a turn's ratios to pre_ln), kept and peak bytes."""
    ids = batch(shape, args.batch, args.seq_len)
    models = {name: build(name, shape) for name in names}
    turns: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(args.repeats + 1):
        for name, model in models.items():
            seconds = cpu_seconds(lambda model=model: step(model, ids))  # type: ignore[misc]
            model.zero_grad(set_to_none=True)
            if turn:  # the first warms up
                turns[name].append(seconds)
    rows = {}
    models.clear()
    for name in names:
        kept, peak = memory(name, args, shape)
        ratios = [a / b for a, b in zip(turns[name], turns["pre_ln"], strict=True)]
        rows[name] = {
            "seconds": min(turns[name]),
            "ratio": statistics.median(ratios),
            "least": min(turns[name]) / min(turns["pre_ln"]),
            "kept": kept,
            "peak": peak,
        }
        print(name, {key: round(value, 3) for key, value in rows[name].items()}, flush=True)
    return rows


def optimiser_seconds(shape: db.Shape, ids: Tensor) -> float:
    model = build("pre_ln", shape)
    step(model, ids)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    return min(cpu_seconds(optimiser.step) for _ in range(5))


def machine(threads: int) -> str:
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return (
        f"{names[0]}, {len(names)} cores, {threads} thread(s) used, float32, "
        f"torch {torch.__version__}, Python {platform.python_version()}, {dt.date.today()}."
    )


def label(name: str) -> str:
    design = name.removeprefix(PLAIN)
    text = db.designs.get(design).label
    return f"{text}, {ANCHORED[design]}" if name.startswith(PLAIN) else f"**{text}**"


def verdict(name: str, row: dict[str, float]) -> str:
    """The target of a design and whether both of its ratios meet it, one of them, or neither."""
    if name not in TARGETS:
        return ""
    met = sum(row[kind] <= TARGETS[name] for kind in ("ratio", "least"))
    return f"{TARGETS[name]:.2f} {('**missed**', 'on the line', 'met')[met]}"


def step_table(rows: dict[str, dict[str, float]], source_bytes: int) -> str:
    base = rows["pre_ln"]
    lines = [
        "| form | time / Pre-LN (median) | (least) | target, L=32 | s a step | kept, MB | beyond, copies | peak, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        copies = (row["kept"] - base["kept"]) / source_bytes
        lines.append(
            f"| {label(name)} | {row['ratio']:.3f} | {row['least']:.3f} | {verdict(name, row)} | {row['seconds']:.2f} "
            f"| {row['kept'] / 1e6:.0f} | {copies:+.2f} | {row['peak'] / 1e6:.0f} |"
        )
    return "\n".join(lines)


def step_section(args: argparse.Namespace) -> str:
    shape = base_shape(args)
    names = [form for name in args.designs for form in ((name, PLAIN + name) if name in args.anchors else (name,))]
    rows = measure(names, shape, args)
    n_tokens = args.batch * args.seq_len
    rate = matmul_rate(shape, n_tokens)
    floor = step_flops(shape, args.batch, args.seq_len) / rate
    copy = (2 * shape.n_layers + 1) * n_tokens * shape.d_model * 4
    optimiser = optimiser_seconds(shape, batch(shape, args.batch, args.seq_len))
    return "\n\n".join(
        [
            f"## A training step at L={shape.n_layers}, d={shape.d_model}, T={args.seq_len}, batch {args.batch}",
            machine(args.threads),
            f"{args.n_heads} heads, d_ff {shape.d_ff}, vocabulary {shape.vocab_size}, {args.repeats} turns. Products "
            f"of this shape run at {rate / 1e9:.0f} Gflop/s here, so the products of a Pre-LN step alone take "
            f"{floor:.2f} s ({floor / rows['pre_ln']['seconds']:.0%} of it). AdamW (fused), not counted below: "
            f"{optimiser:.3f} s. One copy of the sources, 2L + 1 tensors: {copy / 1e6:.0f} MB.",
            step_table(rows, copy),
        ]
    )


def growth_section(args: argparse.Namespace) -> str:
    base = base_shape(args)
    total = base.num_params().total
    shapes = [
        db.solve(total=total, n_layers=depth, n_heads=args.n_heads, vocab_size=args.vocab_size) for depth in args.depths
    ]
    head = "| design | " + " | ".join(f"L={s.n_layers}, d={s.d_model}" for s in shapes) + " |"
    lines: dict[str, list[str]] = {name: [] for name in args.designs}
    for shape in shapes:
        rows = measure(list(args.designs), shape, args)
        for name, row in rows.items():
            lines[name].append(f"{row['ratio']:.2f}; {row['kept'] / 1e6:.0f}; {row['peak'] / 1e6:.0f}")
    body = "\n".join(f"| {label(name)} | " + " | ".join(cells) + " |" for name, cells in lines.items())
    return "\n\n".join(
        [
            f"## Growth with depth at {total / 1e6:.1f}M parameters, T={args.seq_len}, batch {args.batch}",
            machine(args.threads),
            "Each cell: time / Pre-LN at the same shape (median); MB kept for the backward pass; peak MB.",
            f"{head}\n|{'---|' * (1 + len(shapes))}\n{body}",
        ]
    )


def write_section(path: Path, text: str) -> None:
    """Put a section into the file, in the place of the one with the same first word."""
    title = "# What a training step costs"
    note = "Written by `benchmarks/step_time.py`; do not edit by hand. What the numbers say: `README.md`."
    old = path.read_text() if path.exists() else ""
    kind = text.split()[1]
    sections = [s for s in re.split(r"(?m)^(?=## )", old)[1:] if s.split()[1] != kind]
    ordered = sorted([*(s.strip() for s in sections), text])
    path.write_text("\n\n".join([title, note, *ordered]) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", nargs="+", default=list(db.designs.names()), choices=db.designs.names())
    parser.add_argument("--n-layers", type=int, default=32)
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--n-heads", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=512)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5, help="turns that count, after one that does not")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--growth", action="store_true", help="L = 8 .. 70 at fixed parameters instead")
    parser.add_argument("--depths", type=int, nargs="+", default=list(DEPTHS), help="depths of --growth")
    parser.add_argument("--anchors", nargs="*", default=list(ANCHORED), choices=ANCHORED, help="plain forms to measure")
    parser.add_argument("--out", type=Path, default=RESULTS, help="markdown file that gets the section")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--shape-json", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if "pre_ln" not in args.designs:
        args.designs.insert(0, "pre_ln")
    return args


def main() -> None:
    args: Any = arguments()
    torch.set_num_threads(args.threads)
    if args.memory_of:
        print_memory(args)
    else:
        write_section(args.out, growth_section(args) if args.growth else step_section(args))


if __name__ == "__main__":
    main()
