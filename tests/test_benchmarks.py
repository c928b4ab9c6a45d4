"""The benchmark compares like with like: a plain form gives what its design gives. Nothing is timed here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import depthbench as db

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from anchors import ANCHORED, anchor  # noqa: E402
from step_time import TARGETS, verdict  # noqa: E402


@pytest.mark.parametrize("design", ANCHORED)
def test_plain_form_gives_what_the_design_gives(design: str) -> None:
    shape = db.Shape(n_layers=3, d_model=24, n_heads=3, d_ff=32, vocab_size=31)
    plain, fast = anchor(design, shape), db.build_model(design, shape)
    generator = torch.Generator().manual_seed(0)
    state = {name: 0.3 * torch.randn(value.shape, generator=generator) for name, value in fast.state_dict().items()}
    plain.load_state_dict(state)
    fast.load_state_dict(state)
    ids = torch.randint(0, 31, (2, 9), generator=generator)
    losses = [
        torch.nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()) for m in (plain, fast)
    ]
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-4, atol=2e-5)
    for loss in losses:
        loss.backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), fast.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=5e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_the_command_says_what_it_does() -> None:
    done = subprocess.run([sys.executable, BENCHMARKS / "step_time.py", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--growth" in done.stdout


@pytest.mark.parametrize(("dtype", "n_forms"), [("bf16", 3), ("float32", 4)])
def test_the_gpu_table_is_written_on_a_cpu_at_a_small_shape(dtype: str, n_forms: int, tmp_path: Path) -> None:
    """Every form and depth is a row with numbers; what the numbers are is not looked at."""
    out = tmp_path / "GPU.md"
    small = "--device cpu --d-model 16 --n-heads 2 --vocab-size 32 --seq-len 8 --batch 1 --repeats 1 --warm-up 1"
    command = [sys.executable, BENCHMARKS / "gpu_table.py", *small.split(), "--no-compile", "--out", out]
    command += ["--n-layers", "2", "3", "--designs", "pre_ln", "full_attnres", "moda", "--dtype", dtype]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert text.count("## L=") == 2 and text.count("not measured") == 2 * n_forms and "Error" not in text
    assert text.count("Full AttnRes, logits at the read |") == 2 * (n_forms - 3) and text.count("- L=") == 6


def test_the_gpu_table_needs_a_gpu_or_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = subprocess.run([sys.executable, BENCHMARKS / "gpu_table.py"], capture_output=True, text=True)
    assert done.returncode == 2 and "no GPU here" in done.stderr


@pytest.mark.parametrize(("ratio", "least", "said"), [(0.9, 0.9, "met"), (1.1, 0.9, "line"), (1.1, 1.1, "missed")])
def test_a_target_is_met_when_both_ratios_meet_it(ratio: float, least: float, said: str) -> None:
    assert set(TARGETS) == set(db.designs.names()) - {"pre_ln"}
    row = {"ratio": ratio * TARGETS["hc"], "least": least * TARGETS["hc"]}
    assert verdict("hc", row).replace("*", "").endswith(said)
    assert verdict("pre_ln", row) == "", "it is what the others are measured by"
