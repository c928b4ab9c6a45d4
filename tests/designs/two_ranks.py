"""What one of two processes does for `test_parallel`: train two steps of every design, sharded or replicated.

    python -m designs.two_ranks RANK FOLDER

Both processes meet through a file in FOLDER (no port to race for); rank 0 leaves one file of outcomes a job there.
The same `outcome` without a process group is the single process they are compared with.
"""

from __future__ import annotations

import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from olmo_core.config import DType
from olmo_core.distributed.checkpoint import save_model_and_optim_state
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.optim import AdamWConfig
from olmo_core.train.train_module import TransformerTrainModule, TransformerTrainModuleConfig
from olmo_core.train.train_module.transformer.config import TransformerDataParallelConfig
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from depthbench.model import model_config

from .cases import DESIGNS, SHAPE, tokens
from .oracles import randomise

LENGTH, N_SEQUENCES = 8, 4
OPTIONS = {"block_attnres": {"block_size_sublayers": 4}}  # by default three layers make blocks of one sublayer
JOBS = [
    (kind, dtype, design) for kind in ("ddp", "fsdp") for dtype in (None, DType.bfloat16) for design in DESIGNS
]  # dtype: of the parameters in compute; None leaves them in float32


def job_name(kind: str, dtype: DType | None, design: str) -> str:
    return f"{design}-{kind}-{'bf16' if dtype else 'fp32'}"


class NarrowCoefficients(TorchDispatchMode):
    """Records every function that makes a weight or a gate, and those of them computed in less than float32."""

    FUNCTIONS = ("_softmax", "_log_softmax", "tanh", "sigmoid", "exp", "logsumexp")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.narrow: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.FUNCTIONS:
            self.seen.append(name)
            if args[0].dtype in (torch.bfloat16, torch.float16):
                self.narrow.append(name)
        return func(*args, **(kwargs or {}))


class TrainerStub:
    """Takes the metrics that a train module records."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}

    def record_metric(self, name: str, value: Any, **_: Any) -> None:
        self.metrics[name] = value

    def record_ce_loss(self, value: Tensor, reduce_type: Any = None) -> None:
        self.metrics["loss"] = value


def whole(value: Tensor) -> Tensor:
    """All of a parameter or gradient, as a copy."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def batch(step: int) -> Tensor:
    """Token ids of a step, (N_SEQUENCES, LENGTH)."""
    return tokens(batch=N_SEQUENCES, length=LENGTH, seed=step)


@torch.no_grad()
def randomise_shards(model: Any, design: str) -> None:
    """The values that `randomise` gives a whole model."""
    complete = model_config(design, SHAPE, **OPTIONS.get(design, {})).build(init_device="cpu")
    randomise(complete, seed=3)
    values = dict(complete.named_parameters())
    for name, parameter in model.named_parameters():
        value = values[name].to(parameter.dtype)
        if isinstance(parameter, DTensor):
            value = distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.copy_(value)


def train_module(design: str, dp: TransformerDataParallelConfig | None = None) -> TransformerTrainModule:
    """OLMo-core's own, one sequence a micro-batch, so that two ranks accumulate twice and one process four times."""
    config = model_config(design, SHAPE, **OPTIONS.get(design, {}))
    return TransformerTrainModuleConfig(
        rank_microbatch_size=LENGTH,
        max_sequence_length=LENGTH,
        # With a large eps a step is a smooth function of the gradient, where Adam's own is nearly its sign.
        optim=AdamWConfig(lr=0.1, eps=1.0, weight_decay=0.0),
        max_grad_norm=1.0,
        dp_config=dp,
    ).build(config.build(init_device="meta"), device=torch.device("cpu"))


def moments(module: TransformerTrainModule) -> dict[str, Tensor]:
    """Adam's running mean of each parameter's gradient."""
    state: Any = module.optim.state  # type: ignore[union-attr]
    return {name: whole(state[parameter]["exp_avg"]) for name, parameter in module.model.named_parameters()}


def outcome(
    design: str,
    dp: TransformerDataParallelConfig | None = None,
    *,
    rank: int = 0,
    world_size: int = 1,
    n_steps: int = 2,
    checkpoint: Path | None = None,
) -> dict[str, Any]:
    """Loss, gradients and their norm at each step, weights at the end (and the checkpoint's moments), types seen."""
    module = train_module(design, dp)
    trainer: Any = TrainerStub()
    module._attach_trainer(trainer)
    model: Any = module.model
    randomise_shards(model, design)
    steps = []
    with NarrowCoefficients() as coefficients:
        for step in range(n_steps):
            module.zero_grads()
            module.train_batch({"input_ids": batch(step).chunk(world_size)[rank].clone()})
            loss = trainer.metrics["loss"].clone()
            if world_size > 1:
                dist.all_reduce(loss)
            grads = {name: whole(parameter.grad) for name, parameter in model.named_parameters()}
            module.optim_step()
            norm = float(trainer.metrics["total grad norm"])
            steps.append({"loss": float(loss) / world_size, "grads": grads, "norm": norm})
    if checkpoint is not None:
        save_model_and_optim_state(checkpoint, model, module.optim)
    return {
        "steps": steps,
        "weights": {name: whole(parameter) for name, parameter in model.named_parameters()},
        "moments": moments(module) if checkpoint is not None else None,
        "n_sharded": sum(isinstance(parameter, DTensor) for parameter in model.parameters()),
        "dtype": {str(parameter.dtype) for parameter in model.parameters()},
        "coefficients": sorted(set(coefficients.seen)),
        "narrow": sorted(set(coefficients.narrow)),
    }


def main(rank: int, folder: Path) -> None:
    import olmo_core.distributed.parallel as parallel

    torch.set_num_threads(1)
    os.environ["OLMO_SHARED_FS"] = "1"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    for kind, dtype, design in JOBS:
        name = job_name(kind, dtype, design)
        parallel._WORLD_MESH = None  # OLMo-core makes one mesh a process; here every job makes its own
        checkpoint = folder / f"{name}-checkpoint" if kind == "fsdp" and dtype is None else None
        dp = TransformerDataParallelConfig(name=DataParallelType(kind), param_dtype=dtype)
        try:
            result = outcome(design, dp, rank=rank, world_size=2, n_steps=1 if dtype else 2, checkpoint=checkpoint)
        except Exception:
            result = {"error": traceback.format_exc()}
        if rank == 0 or "error" in result:
            torch.save(result, folder / f"{name}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
