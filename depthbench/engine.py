"""OLMo-core's trainer, set up from a TrainSpec: optimiser, schedule, data order, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from olmo_core.config import DType
from olmo_core.data import NumpyDataLoaderConfig, NumpyFSLDatasetConfig, TokenizerConfig
from olmo_core.data.types import NumpyDatasetDType
from olmo_core.optim import AdamWConfig, CosWithWarmup, OptimGroupOverride
from olmo_core.train import Duration, Trainer, TrainerConfig
from olmo_core.train.callbacks import CheckpointerCallback
from olmo_core.train.train_module import TransformerTrainModuleConfig
from olmo_core.utils import seed_all

from depthbench import designs
from depthbench.callbacks import HistoryCallback, ProgressCallback
from depthbench.data import TokenData
from depthbench.model import model_config
from depthbench.spec import TrainSpec


def choose_precision(spec: TrainSpec, device: torch.device) -> str:
    """'auto' is fp32 on a CPU and fp32 parameters with bf16 compute on a GPU."""
    if spec.precision != "auto":
        return spec.precision
    return "bf16-mixed" if device.type == "cuda" else "fp32"


def build_trainer(
    spec: TrainSpec,
    data: TokenData,
    run_dir: Path,
    *,
    device: torch.device,
    microbatch_tokens: int,
    save_interval: int,
    stop_at_step: int | None = None,
    progress: bool = True,
) -> Trainer:
    """A Trainer at step 0 for this specification; raises OLMo-core's error for batch sizes that do not divide."""
    seed_all(spec.seed)
    precision = choose_precision(spec, device)
    dtype = torch.bfloat16 if precision == "bf16-pure" else torch.float32
    config = model_config(spec.design, spec.shape, seed=spec.seed, dtype=dtype, init_std=spec.init_std, **spec.options)
    train_module = TransformerTrainModuleConfig(
        rank_microbatch_size=microbatch_tokens,
        max_sequence_length=spec.seq_len,
        optim=AdamWConfig(
            lr=spec.lr,
            betas=spec.betas,
            eps=spec.adam_eps,
            weight_decay=spec.weight_decay,
            fused=True,
            group_overrides=_overrides(spec),
        ),
        scheduler=CosWithWarmup(warmup=spec.warmup_steps, alpha_f=spec.final_lr_fraction),
        max_grad_norm=spec.max_grad_norm,
        autocast_precision=DType.bfloat16 if precision == "bf16-mixed" else None,
    ).build(config.build(init_device="meta"), device=device)
    work = str(run_dir / "work")
    dataset = NumpyFSLDatasetConfig(
        paths=[str(data.train_path)],
        sequence_length=spec.seq_len,
        tokenizer=TokenizerConfig(
            vocab_size=data.vocab_size, eos_token_id=data.manifest["eos"], pad_token_id=data.manifest["pad"]
        ),
        dtype=NumpyDatasetDType(data.manifest["dtype"]),
        work_dir=work,
    ).build()
    loader = NumpyDataLoaderConfig(
        global_batch_size=spec.global_batch_tokens, seed=spec.data_seed, num_workers=0, work_dir=work
    ).build(dataset, dp_process_group=train_module.dp_process_group)
    callbacks: dict[str, Any] = {
        # OLMo-core keeps three by default and counts from this process only; two are enough to survive a damaged one.
        "checkpointer": CheckpointerCallback(
            save_interval=save_interval, max_checkpoints=2, save_async=False, pre_train_checkpoint=False
        ),
        "history": HistoryCallback(path=run_dir / "history.jsonl", tokens_per_step=spec.global_batch_tokens),
    }
    if progress:
        callbacks["bar"] = ProgressCallback(title=f"{spec.design} L{spec.shape.n_layers}", n_steps=spec.n_steps)
    return TrainerConfig(
        save_folder=str(run_dir),
        work_dir=work,
        save_overwrite=True,
        device=str(device),
        max_duration=Duration.steps(spec.n_steps),
        # hard_stop, not a shorter duration: the schedule is a function of the duration.
        hard_stop=None if stop_at_step is None else Duration.steps(stop_at_step),
        metrics_collect_interval=10,
        cancel_check_interval=5,
        no_evals=True,
        callbacks=callbacks,
    ).build(train_module, loader)


def _overrides(spec: TrainSpec) -> list[OptimGroupOverride]:
    """Weight decay acts on all parameters, norms and embeddings too, as published, but for those a design exempts.

    A design may also scale the rate and Adam's eps of some of its parameters.
    """
    design = designs.configure(spec.design, **spec.options)
    exempt = [OptimGroupOverride(params=list(design.no_decay), opts={"weight_decay": 0.0})] if design.no_decay else []
    own = {"lr": spec.lr, "eps": spec.adam_eps}
    scaled = [
        OptimGroupOverride(params=[glob], opts={key: own[key] * factor for key, factor in factors.items()})
        for glob, factors in design.optimizer_scales(spec.shape.n_layers).items()
    ]
    return exempt + scaled


def optimizer_groups(trainer: Trainer) -> list[dict[str, Any]]:
    """The optimiser's groups as they are: parameters, elements, peak rate, decay."""
    optim: Any = trainer.train_module.optim  # type: ignore[attr-defined]
    return [
        {
            "n_tensors": len(group["params"]),
            "n_elements": sum(p.numel() for p in group["params"]),
            "initial_lr": float(group["initial_lr"]),
            "weight_decay": float(group["weight_decay"]),
            "eps": float(group["eps"]),
        }
        for group in optim.param_groups
    ]
