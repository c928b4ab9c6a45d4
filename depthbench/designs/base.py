"""What a residual design is: open, read, write, close.

A Transformer is 2L branches (attention, feed-forward, attention, ...). A design says what each branch reads and where
its output goes; everything else is shared.

    state = open(embedding)                      # (B, T, D) -> state
    for j, branch in enumerate(branches):        # j = 0 .. 2L-1
        u, carry = read(state, norm)             # u (B, T, D): what branch j sees, after its norm
        y        = branch(u)                     # attention or SwiGLU
        state    = write(carry, y, norm)         # how y is remembered
    h = close(state)                             # (B, T, D) -> final norm -> head

`carry` is whatever `write` needs of what `read` already had in hand (Hyper-Connections compute read, residual and write
weights in one product). `norm` is the norm with a gain that every branch of a LLaMA-like block owns; the block keeps it
under OLMo-core's name, so a `pre_ln` model has the state dict of the stock one. `state` is any nesting of tuples and
tensors (None where a place is empty) and is never changed in place, so that leaving a write out is `state` itself.

Designs leave the branches alone, with one exception: MoDA's attention also reads what earlier layers left, so it has a
`run` between `read` and `write` and supplies the attention module.

Legend: B batch, T position, D d_model, N streams, S sources, J = 2L sublayers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

State = Any
Carry = Any
Norm = Callable[[Tensor], Tensor]


class ShapeLike(Protocol):
    """The part of `depthbench.Shape` that a closed-form count needs."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_ff: int


@dataclass(frozen=True)
class Card:
    """What the book says of a design, beside its code.

    `equation` is LaTeX without dollar signs; `published_lr` the paper's best rate at 400M (Table 4); `notes` the
    choices made where sources are silent or differ.
    """

    name: str
    label: str
    family: Literal["baseline", "norm", "multi-stream", "cross-layer"]
    equation: str
    source: str
    arxiv: str | None
    weight: Literal["fixed", "dynamic"]
    published_lr: float | None
    notes: tuple[str, ...] = ()
    design: type[Design] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The design's options and their defaults."""
        from dataclasses import fields

        assert self.design is not None
        return {f.name: f.default for f in fields(self.design)}

    def extra_params(self, shape: ShapeLike, **options: Any) -> int:
        """Parameters the design adds to the Pre-LN backbone of `shape`, in closed form."""
        from depthbench import designs

        return designs.configure(self.name, **options).extra_params(shape)


@dataclass(frozen=True)
class Site:
    """Where a connection sits and how it makes its parameters.

    `sublayer` is j, 0-based: 2l for the attention of layer l, 2l + 1 for its feed-forward. `kv_dim` is the width of
    the attention's keys, n_kv_heads * head_dim.
    """

    sublayer: int
    n_sublayers: int
    d_model: int
    kv_dim: int
    eps: float
    make_norm: Callable[[], nn.Module]
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def layer(self) -> int:
        """Layer index l, 0-based (the papers count from 1)."""
        return self.sublayer // 2

    def parameter(self, *size: int) -> nn.Parameter:
        """An unfilled parameter; `reset_parameters` must fill it, since `init_weights` empties every tensor first."""
        return nn.Parameter(torch.empty(*size, device=self.device, dtype=self.dtype))


class Connection(nn.Module):
    """How one sublayer reads the state and writes its output back."""

    def __init__(self, site: Site):
        super().__init__()
        self.sublayer = site.sublayer

    def read(self, state: State, norm: Norm) -> tuple[Tensor, Carry]:
        """What the branch sees, (B, T, D), and what `write` will need."""
        raise NotImplementedError

    def run(self, branch: Callable[..., Tensor], u: Tensor, carry: Carry, **kwargs: Any) -> tuple[Tensor, Carry]:
        """The branch's output y (B, T, D), and the carry. Only MoDA does more here than call the branch."""
        return branch(u, **kwargs), carry

    def write(self, carry: Carry, y: Tensor, norm: Norm) -> State:
        """The state after the branch's output y (B, T, D) is remembered."""
        raise NotImplementedError

    def forward(self, state: State, branch: Callable[..., Tensor], norm: Norm, **kwargs: Any) -> State:
        """Read, run the branch, write."""
        u, carry = self.read(state, norm)
        y, carry = self.run(branch, u, carry, **kwargs)
        return self.write(carry, y, norm)


class Ends(nn.Module):
    """How the state is opened from the embedding and closed before the final norm. The base class keeps one tensor."""

    def join(self, connections: Sequence[Connection]) -> None:
        """Be told of the connections of all sublayers, once, when the model is built."""

    def open(self, x: Tensor) -> State:
        """(B, T, D) -> state."""
        return x

    def close(self, state: State) -> Tensor:
        """state -> (B, T, D)."""
        return state


@dataclass(frozen=True, kw_only=True)
class Design:
    """A residual design with its options (the dataclass fields). A new design is one subclass in one file."""

    card: ClassVar[Card]
    #: Globs of parameter names (inside a connection or the ends) that take no weight decay.
    no_decay: ClassVar[tuple[str, ...]] = ()

    @property
    def block_norm(self) -> Literal["rms", "layer"]:
        """The kind of norm every branch of the block owns: RMSNorm, or LayerNorm without bias."""
        return "rms"

    def attention(self, stock: Any) -> nn.Module:
        """A block's attention: OLMo-core's, as it is, but where the design's attention reads more than its input."""
        return stock

    def connection(self, site: Site) -> Connection:
        """The connection of sublayer `site.sublayer`."""
        raise NotImplementedError

    def ends(self, site: Site) -> Ends:
        """How the state opens and closes; `site.sublayer` is J here."""
        return Ends()

    def compile(self, block: Any) -> None:
        """Compile a block with `torch.compile`, in place; the base class does so with the whole block.

        A state with more parts in every layer would make a graph a layer and pass the recompile limit, so a design with
        such a state compiles the norms and the branches (`compile_parts`) and leaves its own part as it is.
        """
        block.compile(fullgraph=False)

    def extra_params(self, shape: ShapeLike) -> int:
        """Parameters beyond the Pre-LN backbone, in closed form; equal to the sum of numel of the built modules."""
        return 0

    def optimizer_scales(self, n_layers: int) -> dict[str, dict[str, float]]:
        """Factors on the optimiser's "lr" and "eps" for parameters whose names match a glob; none by default."""
        return {}

    def finish_init(self, block: Any, *, std: float, generator: torch.Generator) -> None:
        """Rescale a block's fresh weights or draw the design's own, in place, where the design's source asks for it.

        The shared weights are all drawn by then, so the generator's next values disturb none of them.
        """


def compile_parts(*parts: Any) -> None:
    """Compile modules one by one, inside the wrapper of activation checkpointing where there is one."""
    for part in parts:
        getattr(part, "_checkpoint_wrapped_module", part).compile(fullgraph=False)


def at_least_fp32(x: Tensor) -> Tensor:
    """x in float32, or as it is when wider: coefficients are too delicate for bf16, and oracles run in float64."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def no_autocast(x: Tensor) -> torch.autocast:
    """A context in which products stay in the type of their factors: mixed precision would take them in bf16."""
    return torch.autocast(x.device.type, enabled=False)


@torch.no_grad()
def fill(parameter: Tensor, values: Tensor) -> None:
    """Set a parameter, sharded or not, to `values`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    values = values.to(device=parameter.device, dtype=parameter.dtype)
    if isinstance(parameter, DTensor):
        values = distribute_tensor(values, parameter.device_mesh, parameter.placements)
    parameter.copy_(values)
