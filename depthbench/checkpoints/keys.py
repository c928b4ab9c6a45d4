"""Under which names, and in which layout, a native checkpoint keeps the parameters of each design.

Shapes are out x in, N streams, D d_model. Hyper-Connections register each branch a second time inside its connection,
so that its weights may stand under either name, or both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from depthbench.checkpoints.native_config import Layout

Join = Callable[[list[Tensor]], Tensor]


@dataclass(frozen=True)
class Recipe:
    """How to make one parameter: the names each part may have, and what becomes of the parts."""

    parts: tuple[tuple[str, ...], ...]
    join: Join

    @property
    def names(self) -> set[str]:
        """Every name that may hold a part."""
        return {name for part in self.parts for name in part}


def recipe(parameter: str, layout: Layout) -> Recipe:
    """Where a native checkpoint of this layout has a parameter of ours (names without the leading 'model.')."""
    if parameter.startswith("residual_ends.mix."):
        return _mix("", parameter.rsplit(".", 1)[1], "res")
    match = re.fullmatch(r"blocks\.(\d+)\.(attention|feed_forward)(_norm|_residual)?\.(.+)", parameter)
    if match is None:
        return _same(parameter)
    block, branch, kind, rest = f"blocks.{match[1]}.", match[2], match[3], match[4]
    if kind == "_residual":
        return _connection(block, branch, rest, layout)
    if layout in ("hc", "mhc_liger", "mhc_torch"):
        inner = "norm" if kind == "_norm" else branch
        return _same(parameter, f"{block}{branch}_hyper_connection.branch.{inner}.{rest}")
    if layout == "moda" and kind is None:
        return _same(f"{block}{branch}.{branch}.{rest}")
    return _same(parameter)


def _connection(block: str, branch: str, rest: str, layout: Layout) -> Recipe:
    if rest.startswith("post_norm."):
        return _same(f"{block}post_{branch}_norm.{rest.removeprefix('post_norm.')}")
    if rest.startswith("mix."):
        return _mix(block, rest.removeprefix("mix."), "attn_res" if branch == "attention" else "mlp_res")
    if layout == "moda":
        return _same(f"{block}{branch}.{rest}")
    prefix = f"{block}{branch}_hyper_connection."
    if layout == "mhc_torch":
        return _torch_mhc(prefix, rest)
    if layout == "mhc_liger":
        rest = "b" if rest == "bias" else rest
    return Recipe(((prefix + rest,),), _at_least_1d)


def _torch_mhc(prefix: str, name: str) -> Recipe:
    """The backend in plain torch has one tensor a map, and its residual map the other way round: (from, to)."""
    if name == "phi":
        parts = ("pre_dynamic_proj", "post_dynamic_proj", "residual_dynamic_proj")
        return Recipe(tuple((prefix + part,) for part in parts), _join_phi)
    if name == "bias":
        return Recipe(tuple((prefix + part,) for part in ("pre_bias", "post_bias", "residual_bias")), _join_bias)
    gate = {"alpha_pre": "pre_gate", "alpha_post": "post_gate", "alpha_res": "residual_gate"}[name]
    return Recipe(((prefix + gate,),), _at_least_1d)


def _mix(block: str, name: str, prefix: str) -> Recipe:
    """A mixture's query is a linear map to one value, its gain a norm's."""
    if name == "query":
        return Recipe(((f"{block}{prefix}_proj.weight",),), lambda parts: parts[0].squeeze(0))  # (1, D) -> (D,)
    return _same(f"{block}{prefix}_norm.weight")


def _same(*names: str) -> Recipe:
    return Recipe((names,), lambda parts: parts[0])


def _at_least_1d(parts: list[Tensor]) -> Tensor:
    return torch.atleast_1d(parts[0])  # scales are 0-dimensional there


def _join_phi(parts: list[Tensor]) -> Tensor:
    """(N D, N), (N D, N), (N D, N N from-to) -> (N D, [pre N | post N | res N N to-from])."""
    pre, post, residual = parts
    n = pre.shape[-1]
    return torch.cat([pre, post, residual.unflatten(-1, (n, n)).transpose(-1, -2).flatten(-2)], -1)


def _join_bias(parts: list[Tensor]) -> Tensor:
    pre, post, residual = parts
    return torch.cat([pre, post, residual.T.flatten()])
