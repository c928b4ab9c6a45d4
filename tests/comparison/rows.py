"""A row of `load_runs`, made up."""

from __future__ import annotations

from typing import Any


def run_row(**change: Any) -> dict[str, Any]:
    row = {
        "run_id": "r", "kind": "measured", "suite": "pocket", "design": "pre_ln", "options": "{}", "n_layers": 4,
        "d_model": 52, "d_ff": 138, "aspect_ratio": 13.0, "lr": 5e-3, "seed": 0,
        "data_name": "packages-512", "data_sha256": "ab",
        "seq_len": 256, "global_batch_tokens": 2048, "n_tokens": 4_000_000, "steps": 2000, "status": "complete",
        "val_loss_nats": 3.0, "val_loss_se": 0.01, "recipe": "aa", "dtype": "fp32", "params_total": 186_836,
    }  # fmt: skip
    return row | {"run_id": f"r-{sorted(change.items())}"} | change
