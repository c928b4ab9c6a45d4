"""Callbacks on OLMo-core's Trainer: the run's history as JSON lines, and a progress bar."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from olmo_core.train.callbacks import Callback
from tqdm import tqdm

from depthbench.run_folder import read_history

LOSS, LR, GRAD_NORM = "train/CE loss", "optim/LR (group 0)", "optim/total grad norm"


@dataclass
class HistoryCallback(Callback):
    """One JSON line a step: step, tokens, loss (nats), lr, grad_norm.

    After a resume the lines past the checkpoint are dropped, since those steps are run again.
    """

    path: Path = field(default_factory=lambda: Path("history.jsonl"))
    tokens_per_step: int = 1

    def pre_train(self) -> None:
        kept = [row for row in read_history(self.path) if row["step"] <= self.step]
        self.path.write_text("".join(json.dumps(row) + "\n" for row in kept))

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        if LOSS not in metrics:
            return
        row = {
            "step": step,
            "tokens": step * self.tokens_per_step,
            "loss": metrics[LOSS],
            "lr": metrics.get(LR),
            "grad_norm": metrics.get(GRAD_NORM),
        }
        with open(self.path, "a") as out:
            out.write(json.dumps(row) + "\n")


@dataclass
class ProgressCallback(Callback):
    """A progress bar over steps with the latest loss."""

    title: str = ""
    n_steps: int = 1
    _bar: Any = None

    def pre_train(self) -> None:
        self._bar = tqdm(
            total=self.n_steps,
            initial=self.step,
            desc=self.title,
            unit="step",
            mininterval=1.0,
            file=sys.stderr,
            dynamic_ncols=True,
        )

    def post_step(self) -> None:
        self._bar.update(1)

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        if LOSS in metrics and self._bar is not None:
            self._bar.set_postfix(loss=f"{metrics[LOSS]:.3f}", refresh=False)

    def post_train(self) -> None:
        self._bar.close()

    def on_error(self, exc: BaseException) -> None:
        if self._bar is not None:
            self._bar.close()
