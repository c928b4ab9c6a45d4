"""Two processes that share the work end where one process does: DDP and FSDP2, through OLMo-core's train module.

Imports dominate, so that one pair of processes goes through all designs and both kinds (`two_ranks`) and leaves what it
saw in files; each test reads its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from olmo_core.distributed.checkpoint import load_model_and_optim_state

import depthbench as db

from .cases import DESIGNS
from .two_ranks import moments, outcome, train_module

# Two ranks add the same float32 numbers in another order. A sum may then differ by a few units of 6e-8 of its largest
# terms, carried through six sublayers: 1e-5 of a tensor's largest entry is a wide margin, and far below any mistake in
# how gradients are shared (a factor of two, a missing rank). A gradient whose terms nearly cancel (that of a scale is
# one sum over all tokens and streams) cannot be held to its own size: 1e-6 of the norm of the whole gradient is added.
RELATIVE, OF_THE_NORM = 1e-5, 1e-6


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes left the outcomes of all jobs."""
    folder = tmp_path_factory.mktemp("two_ranks")
    tests, library = Path(__file__).parents[1], Path(db.__file__).parents[1]
    processes = []
    for rank in range(2):
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(library), str(tests)]),
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        }
        with open(folder / f"log-{rank}.txt", "w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", f"{__package__}.two_ranks", str(rank), str(folder)],
                    env=env,
                    stdout=log,
                    stderr=log,
                )
            )
    try:
        codes = [process.wait(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0], "\n".join((folder / f"log-{rank}.txt").read_text()[-2000:] for rank in range(2))
    return folder


def of_two(folder: Path, design: str, job: str) -> dict[str, Any]:
    results = [torch.load(path, weights_only=False) for path in sorted(folder.glob(f"{design}-{job}-?.pt"))]
    errors = [result["error"] for result in results if "error" in result]
    assert not errors, "\n".join(errors)
    return results[0]


@cache
def of_one(design: str) -> dict[str, Any]:
    return outcome(design)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("design", DESIGNS)
def test_two_ranks_equal_one(design: str, kind: str, two_ranks: Path) -> None:
    """Two steps: the second starts from what the first made of gradients, clipping and optimiser state."""
    one, two = of_one(design), of_two(two_ranks, design, f"{kind}-fp32")
    assert two["n_sharded"] == (len(one["weights"]) if kind == "fsdp" else 0)
    for a, b in zip(one["steps"], two["steps"], strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=RELATIVE)
        assert b["norm"] == pytest.approx(a["norm"], rel=RELATIVE)
        assert a["grads"].keys() == b["grads"].keys()
        for name, grad in a["grads"].items():
            assert b["grads"][name].shape == grad.shape and b["grads"][name].dtype == torch.float32
            allowed = RELATIVE * grad.abs().max() + OF_THE_NORM * a["norm"]
            assert (b["grads"][name] - grad).abs().max() <= allowed, name
    first, second = (step["loss"] for step in one["steps"])
    assert abs(second / first - 1) > 1e-3, "batches and weights of the second step must differ, or it shows nothing"
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=RELATIVE, atol=RELATIVE, msg=name)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("design", DESIGNS)
def test_bf16_parameters_stay_close(design: str, kind: str, two_ranks: Path) -> None:
    """DDP casts the parameters themselves (bf16-pure); FSDP keeps them in float32 and casts what it gathers."""
    one, two = of_one(design), of_two(two_ranks, design, f"{kind}-bf16")
    assert two["dtype"] == {"torch.bfloat16" if kind == "ddp" else "torch.float32"}
    (a, *_), (b,) = one["steps"], two["steps"]
    grad, want = (torch.cat([g.float().flatten() for g in at["grads"].values()]) for at in (b, a))
    assert b["loss"] == pytest.approx(a["loss"], rel=5e-3)
    assert torch.nn.functional.cosine_similarity(grad, want, dim=0) > 0.98
    assert all(torch.isfinite(value).all() for value in (grad, *two["weights"].values()))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("design", DESIGNS)
def test_bf16_parameters_leave_coefficients_wide(design: str, kind: str, two_ranks: Path) -> None:
    """Every softmax, gate and exponential, the loss's too, runs in at least float32, forward and backward."""
    two = of_two(two_ranks, design, f"{kind}-bf16")
    assert two["narrow"] == []
    of_the_design = set(two["coefficients"]) - {"_log_softmax"}
    assert bool(of_the_design) == (db.designs.get(design).weight == "dynamic"), "the loss alone, or nothing was seen"


@pytest.mark.parametrize("design", DESIGNS)
def test_checkpoint_of_two_ranks_loads_in_one(design: str, two_ranks: Path) -> None:
    two = of_two(two_ranks, design, "fsdp-fp32")
    module = train_module(design)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # by design: one process
        load_model_and_optim_state(two_ranks / f"{design}-fsdp-fp32-checkpoint", module.model, module.optim)
    for loaded, saved in (
        (dict(module.model.named_parameters()), two["weights"]),
        (moments(module), two["moments"]),
    ):
        assert loaded.keys() == saved.keys()
        for name, value in saved.items():
            assert value.any(), name
            assert torch.equal(loaded[name], value), name
