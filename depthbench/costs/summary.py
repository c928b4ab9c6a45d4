"""All closed-form costs of designs at shapes, as one table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from depthbench.costs.flops import Counting, flops_by_part, training_flops
from depthbench.costs.memory import activation_bytes, bytes_moved_per_token, kv_cache_bytes, state_bytes
from depthbench.shapes import Shape


def summary(
    design: str | Iterable[str],
    shape: Shape | Iterable[Shape],
    seq_len: int = 4096,
    dtype: Any = "bfloat16",
    *,
    counting: Counting = "paper",
    **options: Any,
) -> pd.DataFrame:
    """One row a design and shape: parameters, FLOPs of prefill by part, bytes held and moved.

    `prefill_flops` and the cache, state and activation bytes are of one sequence of `seq_len`; `training_flops`
    (counted as "causal") and the bytes moved are of one token. Options hold for every design of the table.
    """
    names = [design] if isinstance(design, str) else list(design)
    shapes = [shape] if isinstance(shape, Shape) else list(shape)
    return pd.DataFrame([_row(name, at, seq_len, dtype, counting, options) for name in names for at in shapes])


def _row(
    design: str, shape: Shape, seq_len: int, dtype: Any, counting: Counting, options: dict[str, Any]
) -> dict[str, Any]:
    parts = flops_by_part(design, shape, seq_len, counting=counting, **options)
    count = shape.num_params(design, **options)
    return {
        "design": design,
        "n_layers": shape.n_layers,
        "d_model": shape.d_model,
        "aspect_ratio": shape.aspect_ratio,
        "params_total": count.total,
        "params_design": count.design,
        "seq_len": seq_len,
        "prefill_flops": sum(parts.values()),
        **{f"{part}_flops": value for part, value in parts.items()},
        "training_flops_per_token": training_flops(design, shape, seq_len=seq_len, **options),
        "kv_cache_bytes": kv_cache_bytes(design, shape, seq_len, dtype, **options),
        "state_bytes": state_bytes(design, shape, seq_len, dtype, **options),
        "activation_bytes": activation_bytes(design, shape, seq_len, dtype, **options),
        "bytes_moved_per_token": bytes_moved_per_token(design, shape, dtype, **options),
        "bytes_moved_by_op_per_token": bytes_moved_per_token(design, shape, dtype, form="by_op", **options),
    }
