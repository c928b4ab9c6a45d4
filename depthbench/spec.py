"""The recipe of one training run, with the paper's values as defaults, and its identity.

`run_id` is a hash of everything that can change the result, so that a rerun finds what it already has and a changed
default makes a new run. What only changes speed (micro-batch, threads, how often to save) is not part of the
specification.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from depthbench import designs
from depthbench.shapes import Shape

SPEC_VERSION = 1


class TrainSpec(BaseModel):
    """One run: design, shape, recipe, seeds and data.

    Defaults are the paper's (section "Training"; AdamW 0.9/0.95/1e-8, decay 0.1, clip 1.0, 10 % linear warm-up, cosine
    to 10 %, 512 x 2048 tokens a step, 20 tokens per parameter, initial std 0.02). Units: tokens for sizes, steps where
    the name says so. Raises ValueError in words for an unknown design, option or field and for sizes that do not fit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    design: str
    shape: Shape
    lr: float = Field(gt=0)
    options: dict[str, Any] = Field(default_factory=dict)
    seed: int = Field(0, ge=0, description="seed of the weights")
    data_seed: int = Field(42, ge=0, description="seed of the order of the data")
    data: str = Field("fineweb-edu", description="name of a prepared data set (depthbench.data)")

    seq_len: int = Field(2048, ge=2)
    global_batch_tokens: int = Field(512 * 2048, ge=2, description="tokens a step")
    n_tokens: int | None = Field(None, ge=1, description="tokens in all; default: tokens_per_param x total parameters")
    tokens_per_param: float = Field(20.0, gt=0)

    betas: tuple[float, float] = (0.9, 0.95)
    adam_eps: float = 1e-8
    weight_decay: float = Field(0.1, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    warmup_fraction: float = Field(0.1, ge=0, lt=1)
    final_lr_fraction: float = Field(0.1, ge=0, le=1)
    init_std: float = Field(0.02, gt=0)
    precision: Literal["auto", "fp32", "bf16-mixed", "bf16-pure"] = Field(
        "auto", description="auto: fp32 on CPU, fp32 parameters with bf16 compute on GPU; bf16-pure: as published"
    )

    @model_validator(mode="after")
    def _check(self) -> TrainSpec:
        designs.configure(self.design, **self.options)
        if self.global_batch_tokens % self.seq_len:
            raise ValueError(
                f"global_batch_tokens ({self.global_batch_tokens:,}) must be a multiple of seq_len ({self.seq_len:,}); "
                f"try {max(1, round(self.global_batch_tokens / self.seq_len)) * self.seq_len:,}"
            )
        return self

    @property
    def n_steps(self) -> int:
        """Optimiser steps: tokens in all over tokens a step, rounded to the nearest, at least one."""
        tokens = self.n_tokens
        if tokens is None:
            tokens = round(self.tokens_per_param * self.shape.num_params(self.design, **self.options).total)
        return max(1, round(tokens / self.global_batch_tokens))

    @property
    def warmup_steps(self) -> int:
        return round(self.warmup_fraction * self.n_steps)

    def resolved(self) -> dict[str, Any]:
        """Every value that can change the result, defaults and derived numbers included, as plain JSON types."""
        known = designs.get(self.design).options
        return {
            "spec_version": SPEC_VERSION,
            **self.model_dump(mode="json", exclude={"n_tokens", "tokens_per_param"}),
            "options": {**known, **self.options},
            "n_steps": self.n_steps,
            "warmup_steps": self.warmup_steps,
        }

    @property
    def run_id(self) -> str:
        """Readable, and unique by a hash of `resolved()`: e.g. `hc-L24-d1024-lr2e-3-s0-1a2b3c4d`."""
        text = json.dumps(self.resolved(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        lr = f"{self.lr:.0e}".replace("e-0", "e-") if float(f"{self.lr:.0e}") == self.lr else f"{self.lr:g}"
        return f"{self.design}-L{self.shape.n_layers}-d{self.shape.d_model}-lr{lr}-s{self.seed}-{digest}"
