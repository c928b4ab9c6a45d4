"""What should every design compute? Float64 oracles, one naive loop per design, written without the implementation.

    oracle("hc", model.state_dict(), shape, {"n_streams": 2}, input_ids)              # logits (B, T, V)
    oracle_trace("hc", model.state_dict(), shape, {"n_streams": 2}, input_ids)        # logits, reads, writes
    randomise(model, seed=0)      # random residual parameters first: at init four designs are Pre-LN and hide errors

An oracle is strict: it raises on an option it does not know, on a missing parameter, on a wrong shape, and on a
parameter of the state dict that its equations never use.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .oracles_backbone import ShapeLike, Trace, Weights
from .oracles_depth import block_attnres, full_attnres, moda
from .oracles_norms import deepnorm, keel, lns, pre_ln, sandwich_ln, scaled_branch
from .oracles_streams import hc, mhc

EQUATIONS: dict[str, Callable[..., Trace]] = {
    "pre_ln": pre_ln,
    "sandwich_ln": sandwich_ln,
    "lns": lns,
    "deepnorm": deepnorm,
    "keel": keel,
    "hc": hc,
    "mhc": mhc,
    "full_attnres": full_attnres,
    "block_attnres": block_attnres,
    "moda": moda,
    "depth_mup": partial(scaled_branch, exponent=0.5),
    "complete_p": partial(scaled_branch, exponent=1.0),
}


def oracle_trace(
    design: str,
    state: Mapping[str, Tensor],
    shape: ShapeLike,
    options: Mapping[str, Any] | None,
    input_ids: Tensor,
) -> Trace:
    """(logits, reads, writes) in float64; differentiable where `state` is.

    Shapes: input_ids (B, T) int64; logits (B, T, V); reads[j], writes[j] (B, T, D) for the sublayers j = 0 .. 2L-1.
    """
    weights = Weights(state)
    trace = EQUATIONS[design](weights, shape, input_ids, **(options or {}))
    if weights.unread:
        raise ValueError(f"{design}: parameters that its equations never use: {sorted(weights.unread)}")
    return trace


def oracle(
    design: str,
    state: Mapping[str, Tensor],
    shape: ShapeLike,
    options: Mapping[str, Any] | None,
    input_ids: Tensor,
) -> Tensor:
    """The logits (B, T, V) of `oracle_trace`."""
    return oracle_trace(design, state, shape, options, input_ids).logits


ORACLES: dict[str, Callable[[Mapping[str, Tensor], ShapeLike, Mapping[str, Any] | None, Tensor], Tensor]] = {
    name: partial(oracle, name) for name in EQUATIONS
}
"""Design name -> (state, shape, options, input_ids) -> logits."""


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Fill every parameter, in place, with random values large enough to matter.

    A value depends on the seed, the parameter's name and its shape only, so that equal backbones stay equal between
    designs. Unit-gain scales keep activations and softmax logits of order one at any width: no saturation.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
            parameter.copy_(random_value(name, tuple(parameter.shape), generator))


def random_value(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Float64 values for one parameter, by the last part of its name."""
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    last = name.rsplit(".", 1)[-1]
    if name.endswith("norm.weight") or last == "gain":
        return 0.5 + uniform  # around 1
    if last == "static_alpha":  # (n, n+1): nothing symmetric or near the identity, carries at gain one
        return normal / math.sqrt(shape[0])
    if last == "static_beta":
        return 1 + 0.3 * normal
    if last in ("dynamic_alpha_scale", "dynamic_beta_scale"):
        return 0.2 + 0.3 * uniform
    if last in ("alpha_pre", "alpha_post", "alpha_res"):
        return 0.5 + 0.4 * uniform
    if last == "bias":  # mHC: with alpha * u of std 0.7, logits of std 1
        return 0.7 * normal
    if last in ("dynamic_alpha_proj", "dynamic_beta_proj", "phi", "query"):  # the input axis is the first
        return normal / math.sqrt(shape[0])
    if name == "embeddings.weight" or len(shape) < 2:
        return 0.3 * normal
    return normal / math.sqrt(shape[-1])  # a linear map (out, in)
