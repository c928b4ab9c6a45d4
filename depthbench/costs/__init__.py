"""What does a design cost at a shape? Parameters aside: products, bytes held, bytes moved; counted, then measured.

    flops.py      products of prefill and training, in closed form
    memory.py     key-value cache, residual state, what autograd keeps, bytes moved
    residual.py   the part of each design in all of these, one function a design
    summary.py    all of it as a table
    measured.py   rows of benchmarks/prefill.py: seconds and peak bytes of one machine
    readings.py   which shape and design wins for the same compute or the same seconds

Legend: L n_layers, d d_model, J = 2L sublayers, V vocab_size, k n_kv_heads * head_dim, T seq_len, S sources or slots.
"""

from depthbench.costs.flops import Counting, flops_by_part, prefill_flops, training_flops
from depthbench.costs.measured import PrefillRow, append_prefill, load_prefill
from depthbench.costs.memory import activation_bytes, bytes_moved_per_token, kv_cache_bytes, state_bytes
from depthbench.costs.readings import (
    best_within,
    loss_and_cost,
    loss_at_budget,
    pareto,
    same_backbone_same_total,
    with_costs,
)
from depthbench.costs.residual import NoCost, ResidualCost, residual_cost
from depthbench.costs.summary import summary

__all__ = [
    "Counting",
    "NoCost",
    "PrefillRow",
    "ResidualCost",
    "activation_bytes",
    "append_prefill",
    "best_within",
    "bytes_moved_per_token",
    "flops_by_part",
    "kv_cache_bytes",
    "load_prefill",
    "loss_and_cost",
    "loss_at_budget",
    "pareto",
    "prefill_flops",
    "residual_cost",
    "same_backbone_same_total",
    "state_bytes",
    "summary",
    "training_flops",
    "with_costs",
]
