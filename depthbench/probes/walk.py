"""Run a model one sublayer at a time from any state, with a layer left out: what all probes are made of.

`Walk` says what a state, a skip, a lens and a path mean for any design, from its four verbs alone; `views.py` says it
for the designs whose state holds more than one tensor.

Two readings of leaving layer l out, where designs are not alike:

    silent      like for like: both sublayers write nothing, y = 0, and all else goes on as it would: streams are mixed,
                post-norms applied, depth slots dropped, a softmax over sources runs over what is left
    reference   what the paper's code does (see each view): mostly that the state passes the layer untouched

Legend: B batch, T position, D d_model, N slots of the state (one tensor, streams or sources), L layers, J = 2L.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

Skip = Literal["silent", "reference"]
Swap = Literal["branches", "reference"]
Exchange = tuple[Any, str, Any, str]  # the attribute of one object and that of another, to change places


@dataclass(frozen=True)
class Moment:
    """What happened at sublayer j: the states before and after, the read before its norm, the branch's input, output.

    raw, u, y: (B, T, D). `raw` is u where the design reads without a norm.
    """

    j: int
    before: Any
    raw: Tensor
    u: Tensor
    y: Tensor
    carry: Any
    after: Any


@dataclass(frozen=True)
class Flow:
    """How one sublayer passes on what is remembered, per token, its coefficients held at what they were.

        raw = sum_n read_n s_n;    s'_n = norm( sum_m move_nm s_m + write_n written )

    Shapes: read (B, T, N); move (B, T, N', N) or None for the identity; write (B, T, N'); written (B, T, D), the output
    or, where the design norms it before adding, the normed output; norm: a post-norm with its statistics held, linear
    in its argument, or None.
    """

    read: Tensor
    move: Tensor | None
    write: Tensor
    written: Tensor
    norm: Callable[[Tensor], Tensor] | None = None


class Walk:
    """A model's states, sublayer by sublayer; the defaults are for a state of one tensor or of streams (B, T, N, D)."""

    def __init__(self, model: nn.Module):
        self.model: Any = model
        self.blocks: list[Any] = list(cast(Any, model).blocks.values())
        self.n_layers = len(self.blocks)

    def site(self, j: int) -> tuple[Any, nn.Module, Callable[[Tensor], Tensor]]:
        """Connection, branch and the block's own norm of sublayer j."""
        block = self.blocks[j // 2]
        if j % 2 == 0:
            return block.attention_residual, block.attention, block.attention_norm
        return block.feed_forward_residual, block.feed_forward, block.feed_forward_norm

    def open(self, ids: Tensor) -> Any:
        """The state before the first layer, of token ids (B, T)."""
        return self.model.residual_ends.open(self.model.embeddings(ids))

    def read(self, j: int, state: Any) -> tuple[Tensor, Tensor, Any]:
        """The read of sublayer j before its norm and after it, and the carry."""
        connection, _, norm = self.site(j)
        seen: list[Tensor] = []

        def listening(x: Tensor) -> Tensor:
            seen.append(x)
            return norm(x)

        u, carry = connection.read(state, listening)
        return (seen[0] if seen else u), u, carry

    def step(self, j: int, state: Any) -> Moment:
        """Run sublayer j."""
        connection, branch, norm = self.site(j)
        raw, u, carry = self.read(j, state)
        y, carry = connection.run(branch, u, carry)
        return Moment(j, state, raw, u, y, carry, connection.write(carry, y, norm))

    def moments(self, state: Any, start: int = 0, stop: int | None = None) -> Iterator[Moment]:
        """The sublayers of layers start .. stop - 1 from the state before layer `start`."""
        for j in range(2 * start, 2 * (self.n_layers if stop is None else stop)):
            moment = self.step(j, state)
            state = moment.after
            yield moment
            del moment

    def run(self, state: Any, start: int = 0, stop: int | None = None) -> Any:
        """The state after layers start .. stop - 1."""
        for block in self.blocks[start:stop]:
            state = block(state)
        return state

    def close(self, state: Any) -> Tensor:
        """What the final norm reads, (B, T, D)."""
        return self.model.residual_ends.close(state)

    def logits(self, h: Tensor) -> Tensor:
        """Final norm and head: (B, T, D) -> (B, T, V)."""
        return self.model.lm_head(h)

    # What a design may have to say for itself.

    def position(self, l: int, state: Any, raw: Tensor | None = None) -> Tensor:
        """z_l (B, T, .), the state before layer l as one vector; z_0 the embedding, z_L what the last layer left.

        `raw`, the read of layer l's attention where it is known already, saves designs that use it a second read.
        """
        if isinstance(state, Tensor):
            return state.flatten(2)
        return self.close(state)

    def skip(self, l: int, state: Any, skip: Skip) -> Any:
        """The state after layer l was left out."""
        if skip == "reference":
            return self.reference_skip(l, state)
        for j in (2 * l, 2 * l + 1):
            state = self.silent(j, state)
        return state

    def silent(self, j: int, state: Any) -> Any:
        """The state after sublayer j wrote nothing."""
        connection, _, norm = self.site(j)
        u, carry = connection.read(state, norm)
        return connection.write(carry, torch.zeros_like(u), norm)

    def reference_skip(self, l: int, state: Any) -> Any:
        """The state after layer l was left out as the reference code does."""
        return state

    def exchanges(self, a: int, b: int, swap: Swap) -> list[Exchange]:
        """What changes places when layers a and b are swapped.

        branches: attention and feed-forward with the norms the block owns; all that the design adds stays in place.
        reference: the connections travel too (see the views for what the reference code leaves in place).
        """
        names = ["attention", "feed_forward", "attention_norm", "feed_forward_norm"]
        pairs: list[Exchange] = [(self.blocks[a], name, self.blocks[b], name) for name in names]
        return pairs + (self.travelling(a, b) if swap == "reference" else [])

    def travelling(self, a: int, b: int) -> list[Exchange]:
        """What of the connections the reference code swaps along."""
        names = ("attention_residual", "feed_forward_residual")
        return [(self.blocks[a], name, self.blocks[b], name) for name in names]

    def lenses(self, l: int, state: Any, raw: Tensor | None = None) -> dict[str, Tensor]:
        """What the final norm may be given after l layers, (B, T, D): `close`, the model's own end on the state so far,
        and `next`, what the next attention reads before its norm. At l = L both are the end.
        """
        end = self.close(state)
        if l == self.n_layers:
            return {"close": end, "next": end}
        return {"close": end, "next": self.read(2 * l, state)[0] if raw is None else raw}

    def slots(self, state: Any) -> Tensor:
        """How the opened state holds the embedding: its factor in each slot, (N,)."""
        if not isinstance(state, Tensor):
            raise NotImplementedError(self._untold("slots, flow and closing"))
        return torch.ones(1 if state.ndim == 3 else state.shape[2], dtype=torch.float64, device=state.device)

    def flow(self, moment: Moment) -> Flow:
        """The sublayer as linear maps. By default, of one tensor: the factors nearest to what it did, per token.

        before ~ after:  after = m before + b y  in least squares;  raw = r before.
        """
        before, after, y = moment.before, moment.after, moment.y
        if not (isinstance(before, Tensor) and before.ndim == 3):
            raise NotImplementedError(self._untold("slots, flow and closing"))
        basis = torch.stack([before, y], -1).double()  # (B, T, D, 2)
        factors = torch.linalg.pinv(basis) @ after.double().unsqueeze(-1)  # (B, T, 2, 1)
        read = nearest_factor(moment.raw, before).unsqueeze(-1)
        return Flow(read, factors[..., :1, :], factors[..., 1, :], y)

    def closing(self, state: Any) -> Tensor:
        """The factor of each slot in the end, (B, T, N)."""
        if not (isinstance(state, Tensor) and state.ndim == 3):
            raise NotImplementedError(self._untold("slots, flow and closing"))
        return nearest_factor(self.close(state), state).unsqueeze(-1)

    def depth_weights(self, j: int, state: Any) -> tuple[Tensor, int | None]:
        """Softmax weights (S, B, T) of sublayer j (J: of the end) over all sources, and the index of the running sum.

        Raises ValueError for a design that mixes no sources.
        """
        raise ValueError(
            f"{self._name()} mixes no sources; depth mixing is for full_attnres, block_attnres and designs whose view "
            "has depth_weights"
        )

    def residual_map(self, moment: Moment) -> Tensor:
        """The residual map (B, T, N to, N from) of a sublayer; raises ValueError for a design without streams."""
        raise ValueError(
            f"{self._name()} has no streams; residual transport is for hc, mhc and designs whose view has residual_map"
        )

    def _name(self) -> str:
        return repr(self.model.design.card.name)

    def _untold(self, what: str) -> str:
        return f"the state of {self._name()} is not one tensor; its view in probes/views.py must tell {what}"


def nearest_factor(x: Tensor, onto: Tensor) -> Tensor:
    """The c (B, T) for which c * onto is nearest to x, in float64; (B, T, D) each."""
    x, onto = x.double(), onto.double()
    return (x * onto).sum(-1) / onto.square().sum(-1).clamp_min(torch.finfo(torch.float64).tiny)


def check_choice(name: str, value: str, allowed: Any) -> None:
    """Raise ValueError naming what is allowed."""
    if value not in get_args(allowed):
        raise ValueError(f"{name} must be {' or '.join(map(repr, get_args(allowed)))}, got {value!r}")
