"""What does a training step cost on a GPU, at the paper's 400M shapes? Time and memory, plain and compiled.

    python benchmarks/gpu_table.py                  # L = 16, 32, 70 in bf16, written to GPU.md
    python benchmarks/gpu_table.py --device cpu --n-layers 2 --d-model 32 --n-heads 2 --vocab-size 64 --seq-len 16

A step is forward, loss and backward, by default under bf16 autocast with float32 parameters as in a training run; a
step of Pre-LN stands before and after each form, and a ratio is to the mean of the two. Memory is the device's peak
above what the model itself takes. What does not fit, or does not compile, is a row that says so. Forms: every design as
it is and compiled; in float32 also AttnRes with each mixture's logits made at its read instead of ahead of it (under
bf16 they are always made at the read, since the types of the sources differ). The last section is which form was
fastest, design by design: from it the defaults on a GPU are chosen.

Nothing here has been run on a GPU by its writers; the tests run it on a CPU at a small shape.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from tqdm import tqdm

import depthbench as db
from depthbench.designs.attn_res import AttnResEnds
from depthbench.shapes import feed_forward_width

OUT = Path(__file__).with_name("GPU.md")


@dataclass(frozen=True)
class Form:
    """A design and how its step is run."""

    design: str
    compiled: bool = False
    ahead: bool = True

    @property
    def label(self) -> str:
        """The design with what is not its default form."""
        how = [word for word, told in (("compiled", self.compiled), ("logits at the read", not self.ahead)) if told]
        return ", ".join([db.designs.get(self.design).label, *how])


def forms(args: argparse.Namespace) -> list[Form]:
    """Every form to measure."""
    found = [Form(design, how) for design in args.designs for how in ((False, True) if args.compile else (False,))]
    if args.dtype == "float32" and "full_attnres" in args.designs:
        found.append(Form("full_attnres", ahead=False))
    return found


def shape_of(args: argparse.Namespace, n_layers: int) -> db.Shape:
    """The paper's shape of that depth, or with --d-model one given by hand."""
    if args.d_model is None:
        return db.SUITES["main-400m"].shape(n_layers)
    own = {name: getattr(args, name) for name in ("d_model", "n_heads", "vocab_size")}
    return db.Shape(n_layers=n_layers, d_ff=feed_forward_width(args.d_model), **own)


def build(form: Form, shape: db.Shape, device: torch.device) -> Any:
    """The model of a form on the device, in float32."""
    model = db.build_model(form.design, shape, device=device)
    if form.compiled:
        model.apply_compile()
    return model


def step(model: Any, ids: Tensor, ahead: bool, bf16: bool) -> None:
    """Forward, loss, backward."""
    model.zero_grad(set_to_none=True)
    at_the_read: AbstractContextManager[Any] = (
        nullcontext() if ahead else patch.object(AttnResEnds, "_queries", lambda self, x: None)
    )
    with at_the_read, torch.autocast(ids.device.type, torch.bfloat16, enabled=bf16):
        logits = model(ids)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.roll(-1, 1).flatten())
    loss.backward()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall time of some work, with the device at rest before and after."""
    rest = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    rest()
    start = time.perf_counter()
    work()
    rest()
    return time.perf_counter() - start


def run(form: Form, shape: db.Shape, args: argparse.Namespace) -> dict[str, float]:
    """Seconds a step (median) and peak bytes beyond the model; the first steps, which compile and tune, left out."""
    device, on_gpu, bf16 = torch.device(args.device), args.device == "cuda", args.dtype == "bf16"
    torch.compiler.reset()
    torch.manual_seed(0)
    model = build(form, shape, device)
    ids = torch.randint(0, shape.vocab_size, (args.batch, args.seq_len), device=device)
    for _ in range(args.warm_up):
        step(model, ids, form.ahead, bf16)
    model.zero_grad(set_to_none=True)
    held = 0
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
    times = [seconds(lambda: step(model, ids, form.ahead, bf16), device) for _ in range(args.repeats)]
    peak = torch.cuda.max_memory_allocated() - held if on_gpu else 0
    return {"seconds": statistics.median(times), "peak": peak}


def attempt(form: Form, shape: db.Shape, args: argparse.Namespace) -> dict[str, Any]:
    """`run`, or in words what went wrong."""
    try:
        return run(form, shape, args)
    except torch.OutOfMemoryError:
        return {"failed": "out of memory"}
    except Exception as error:  # a compiler's errors have no common kind; the others' rows must not be lost to one
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"}
    finally:
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()


def section(n_layers: int, args: argparse.Namespace, progress: Any) -> tuple[str, dict[str, dict[str, float]]]:
    """The table of one depth, and seconds by design and form."""
    shape = shape_of(args, n_layers)
    lines = ["| form | time / Pre-LN | s a step | tokens/s | peak beyond the model, GB |", "|---|---|---|---|---|"]
    won: dict[str, dict[str, float]] = {}
    before = attempt(Form("pre_ln"), shape, args)
    for form in forms(args):
        row = attempt(form, shape, args)
        after = attempt(Form("pre_ln"), shape, args)
        progress.update()
        if "failed" in row or "failed" in before or "failed" in after:
            lines.append(f"| {form.label} | {row.get('failed', 'Pre-LN failed')} | | | |")
        else:
            ratio = 2 * row["seconds"] / (before["seconds"] + after["seconds"])
            won.setdefault(form.design, {})[form.label] = ratio
            peak = f"{row['peak'] / 1e9:.2f}" if row["peak"] else "not measured"
            speed = args.batch * args.seq_len / row["seconds"]
            lines.append(f"| {form.label} | {ratio:.3f} | {row['seconds']:.4f} | {speed:,.0f} | {peak} |")
        before = after
    size = f"{shape.num_params().total:,} parameters"
    head = f"## L={n_layers}, d={shape.d_model}, T={args.seq_len}, batch {args.batch}: {size}"
    return "\n".join([head, "", *lines]), won


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", nargs="+", default=list(db.designs.names()), choices=db.designs.names())
    parser.add_argument("--n-layers", type=int, nargs="+", default=[16, 32, 70])
    parser.add_argument("--d-model", type=int, help="default: the paper's shape of each depth")
    parser.add_argument("--n-heads", type=int, default=16, help="with --d-model")
    parser.add_argument("--vocab-size", type=int, default=50280, help="with --d-model")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4, help="sequences a step")
    parser.add_argument("--repeats", type=int, default=10, help="steps that count")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before them")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="the compiled forms too")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "float32"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here; --device cpu with a small shape shows what the script does")
    return args


def main() -> None:
    """Measure every depth; the file is written after each, so that a stop loses one depth at most."""
    args = arguments()
    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or "a CPU"
    parts = [
        "# What a training step costs on a GPU",
        f"Written by `benchmarks/gpu_table.py`; do not edit by hand. {device}, {args.dtype} over float32 parameters, "
        f"torch {torch.__version__}, {dt.date.today()}.",
    ]
    fastest: list[str] = []
    with tqdm(total=len(args.n_layers) * len(forms(args)), unit="form") as progress:
        for n_layers in args.n_layers:
            table, won = section(n_layers, args, progress)
            parts.append(table)
            fastest += [
                f"- L={n_layers}, {db.designs.get(design).label}: {min(by_form, key=by_form.__getitem__)}"
                for design, by_form in won.items()
            ]
            args.out.write_text("\n\n".join([*parts, "## The fastest form", "\n".join(fastest)]) + "\n")
    print(args.out)


if __name__ == "__main__":
    main()
