"""TrainSpec -> OLMo-core's Trainer -> checkpoint and run record; the same call resumes what was cut.

`run_folder.py` says what a run leaves in its folder.
"""

from __future__ import annotations

import errno
import json
import logging
import shutil
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from olmo_core.train import Trainer
from torch.distributed.checkpoint.api import CheckpointException

from depthbench import provenance, records
from depthbench.checkpoints import save_final
from depthbench.data import TokenData, load
from depthbench.engine import build_trainer, choose_precision, optimizer_groups
from depthbench.evaluate import validation_loss
from depthbench.paths import DATA
from depthbench.records import DataRef, Params, RunRecord
from depthbench.run_folder import RunRefused, State, finished, hold, log_to, read_history, write_atomic
from depthbench.spec import TrainSpec


def train(
    spec: TrainSpec,
    run_dir: str | Path,
    *,
    suite: str | None = None,
    kind: str = "measured",
    data_root: str | Path = DATA,
    record_file: str | Path | None = records.LOCAL_RUNS,
    device: str | None = None,
    microbatch_tokens: int | None = None,
    save_interval: int | None = None,
    stop_at_step: int | None = None,
    keep_checkpoints: bool = False,
    progress: bool = True,
) -> RunRecord:
    """Train one run or finish one that was cut, and return its record.

    A complete run is returned as it is. A cut one goes on from its last good checkpoint: on one CPU the result is
    bitwise that of an uninterrupted run. `save_interval` steps (default: a tenth of the run) bounds what a kill can
    lose. `stop_at_step` stops early without changing the schedule. A non-finite loss ends the run as `diverged`;
    SIGTERM or `stop_at_step` as `stopped`.

    Raises RunRefused if another process holds the folder or if it belongs to another specification or other data,
    DataError for data that is missing or damaged, ValueError for a vocabulary that does not fit.
    """
    run_dir = Path(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    with hold(run_dir):
        data = load(spec.data, data_root)
        _check_fit(spec, data)
        _check_owner(run_dir, spec, data)
        if (done := finished(run_dir)) is not None:
            return done
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        microbatch = microbatch_tokens or spec.global_batch_tokens
        started, clock = provenance.now(), time.perf_counter()
        state = State(run_dir)
        with log_to(run_dir / "train.log"), warnings.catch_warnings():
            # True by design on one process, and repeated at every checkpoint.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            trainer = _ready_trainer(
                spec,
                data,
                run_dir,
                device=target,
                microbatch_tokens=microbatch,
                save_interval=save_interval or max(1, spec.n_steps // 10),
                stop_at_step=stop_at_step,
                progress=progress,
            )
            first_step = trainer.global_step
            if trainer.checkpoint_loaded:
                state.n_resumes += 1
            fit_clock = time.perf_counter()
            status, reason = _fit(trainer, spec)
            fit_s = time.perf_counter() - fit_clock
            state.wall_s += time.perf_counter() - clock
            state.save()
            model: Any = trainer.train_module.model  # type: ignore[attr-defined]
            val = weights = None
            if status == "complete":
                val = validation_loss(
                    model,
                    data.val_tokens(),
                    seq_len=spec.seq_len,
                    documents=data.doc_ids("val"),
                    bytes_per_token=data.bytes_per_token("val"),
                    progress=progress,
                )
                weights = save_final(model, spec, run_dir / "final")
        history = read_history(run_dir / "history.jsonl")
        steps = trainer.global_step
        record = RunRecord(
            run_id=spec.run_id,
            kind=kind,  # type: ignore[arg-type]
            suite=suite,
            design=spec.design,
            options=spec.resolved()["options"],
            shape=spec.shape.model_dump(),
            params=Params(**asdict(spec.shape.num_params(spec.design, **spec.options))),
            recipe=spec.resolved(),
            optimizer_groups=optimizer_groups(trainer),
            data=_data_ref(data),
            status=status,  # type: ignore[arg-type]
            reason=reason,
            steps=steps,
            tokens=steps * spec.global_batch_tokens,
            val_loss=val,
            train_loss_last=history[-1]["loss"] if history else None,
            grad_norm_max=max((row["grad_norm"] for row in history if row["grad_norm"] is not None), default=None),
            curve="history.jsonl",
            weights_sha256=weights,
            wall_s=round(state.wall_s, 2),
            tokens_per_s=round((steps - first_step) * spec.global_batch_tokens / fit_s, 1),
            peak_bytes=provenance.peak_bytes(target),
            n_resumes=state.n_resumes,
            provenance=provenance.of_this_process(
                target, dtype=choose_precision(spec, target), microbatch_tokens=microbatch, started=started
            ),
        )
        # The row first: a kill between the two leaves a run that is looked at again, not a row that is lost.
        if record_file is not None:
            records.append(record, Path(record_file))
        if status != "stopped":
            write_atomic(run_dir / "record.json", record.model_dump_json(indent=1))
        if status == "complete" and not keep_checkpoints:
            for path in run_dir.glob("step*"):
                shutil.rmtree(path)
        return record


def _ready_trainer(spec: TrainSpec, data: TokenData, run_dir: Path, **kwargs: Any) -> Trainer:
    """A trainer at the newest checkpoint that loads; a damaged one is set aside and the one before it is tried."""
    while True:
        trainer = build_trainer(spec, data, run_dir, **kwargs)
        found = sorted(trainer.checkpointer.find_checkpoints(str(run_dir)), reverse=True)
        if not found:
            return trainer
        step, path = found[0]
        try:
            trainer.load_checkpoint(path, load_trainer_state=True, load_optim_state=True)
            return trainer
        except (Exception, CheckpointException) as error:  # whatever a damaged file raises, BaseException included
            aside = run_dir / f"damaged-step{step}"
            shutil.rmtree(aside, ignore_errors=True)
            Path(path).rename(aside)
            logging.getLogger("depthbench").warning(
                "checkpoint %s does not load (%s: %s); set aside as %s",
                Path(path).name,
                type(error).__name__,
                error,
                aside.name,
            )


def _fit(trainer: Trainer, spec: TrainSpec) -> tuple[str, str | None]:
    """Run to the end and say how it ended."""
    try:
        trainer.fit()
    except RuntimeError as error:
        if "loss encountered at step" in str(error):
            return "diverged", str(error)
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise OSError(
                errno.ENOSPC,
                f"disk full at step {trainer.global_step}; the last checkpoint is intact: free space and run again",
            ) from error
        raise
    if trainer.global_step < spec.n_steps:
        return "stopped", trainer._cancel_reason or f"asked to stop at step {trainer.global_step}"
    return "complete", None


def _check_fit(spec: TrainSpec, data: TokenData) -> None:
    if data.vocab_size != spec.shape.vocab_size:
        raise ValueError(
            f"data {data.name!r} has {data.vocab_size:,} token ids and the shape {spec.shape.vocab_size:,}; "
            f"use a shape with vocab_size={data.vocab_size} or data prepared with {spec.shape.vocab_size} ids"
        )


def _check_owner(run_dir: Path, spec: TrainSpec, data: TokenData) -> None:
    """Write spec.json, or hold the folder to the one it has."""
    wanted: dict[str, Any] = {"run_id": spec.run_id, "recipe": spec.resolved(), "data": _data_ref(data).model_dump()}
    path = run_dir / "spec.json"
    if not path.exists():
        write_atomic(path, json.dumps(wanted, indent=1, sort_keys=True))
        return
    found = json.loads(path.read_text())
    if found != json.loads(json.dumps(wanted)):
        differ = [
            f"{part}.{key}: folder {found.get(part, {}).get(key)!r}, asked {wanted[part][key]!r}"
            for part in ("recipe", "data")
            for key in wanted[part]
            if json.loads(json.dumps(wanted[part][key])) != found.get(part, {}).get(key)
        ]
        raise RunRefused(
            f"{run_dir} holds another run ({found.get('run_id')}): "
            + "; ".join(differ)
            + ". Use another folder, or remove this one."
        )


def _data_ref(data: TokenData) -> DataRef:
    splits = data.manifest
    return DataRef(
        name=data.name,
        revision=data.manifest["revision"],
        train_sha256=splits["train"]["sha256"],
        val_sha256=splits["val"]["sha256"],
        n_train_tokens=splits["train"]["n_tokens"],
    )
