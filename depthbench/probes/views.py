"""What each design's state means to a probe: the one file of the probes that knows what a design keeps.

A design that is not named here is walked with the defaults of `Walk`, which need the four verbs only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from depthbench.probes.walk import Exchange, Flow, Moment, Walk, nearest_factor


def walk(model: nn.Module) -> Walk:
    """The walk through a model, by its design."""
    return _VIEWS.get(getattr(model, "design").card.name, Walk)(model)  # noqa: B009


class Additive(Walk):
    """Pre-LN and its kin: what is written is added, so a later read holds all of it."""

    def flow(self, moment: Moment) -> Flow:
        connection, _, _ = self.site(moment.j)
        one = moment.y.new_ones(*moment.y.shape[:2], 1, dtype=torch.float64)  # (B, T, 1)
        post_norm = getattr(connection, "post_norm", None)
        written = moment.y if post_norm is None else post_norm(moment.y)
        return Flow(one, None, one * self._factor(connection), written)

    def closing(self, state: Any) -> Tensor:
        end = self.close(state)
        return end.new_ones(*end.shape[:2], 1, dtype=torch.float64)

    def _factor(self, connection: Any) -> float:
        return 1.0


class ScaledAdditive(Additive):
    """Depth-muP and CompleteP: the write has a factor."""

    def _factor(self, connection: Any) -> float:
        return float(connection.factor)


class PostNorm(Additive):
    """DeepNorm and KEEL: the sum of a scaled skip and the branch is normed."""

    def flow(self, moment: Moment) -> Flow:
        connection, _, norm = self.site(moment.j)
        post_norm = connection.post_norm if hasattr(connection, "post_norm") else norm
        one = moment.y.new_ones(*moment.y.shape[:2], 1, dtype=torch.float64)
        total = connection.alpha * moment.before + moment.y
        held = None if post_norm is None else hold(post_norm, total)
        return Flow(one, (connection.alpha * one).unsqueeze(-1), one, moment.y, held)

    def travelling(self, a: int, b: int) -> list[Exchange]:
        """The post-norms that both layers have; the factors of the skip, and KEEL's missing norm, stay."""
        pairs: list[Exchange] = []
        for j in (0, 1):
            one, other = self.site(2 * a + j)[0], self.site(2 * b + j)[0]
            if all(getattr(connection, "post_norm", None) is not None for connection in (one, other)):
                pairs.append((one, "post_norm", other, "post_norm"))
        return pairs


class Depth(Additive):
    """MoDA: the state is the residual and the depth slots of earlier layers."""

    def position(self, l: int, state: Any, raw: Tensor | None = None) -> Tensor:
        return state[0]

    def silent(self, j: int, state: Any) -> Any:
        return state  # nothing is added and no slot left, not even one of zeros, which would take a share

    def reference_skip(self, l: int, state: Any) -> Any:
        """Keys and values of zero in the layer's slots, which still count in later softmaxes."""
        h, slots = state
        zeros = h.new_zeros(*h.shape[:2], self.blocks[l].attention.w_k.out_features)  # (B, T, K * E)
        left = 1 + hasattr(self.site(2 * l + 1)[0], "kv_proj")
        return h, (*slots, *[(zeros, zeros)] * left)

    def slots(self, state: Any) -> Tensor:
        return torch.ones(1, dtype=torch.float64, device=state[0].device)

    def travelling(self, a: int, b: int) -> list[Exchange]:
        """The projections of feed-forward slots, where both layers have one."""
        one, other = (self.site(2 * l + 1)[0] for l in (a, b))
        both = hasattr(one, "kv_proj") and hasattr(other, "kv_proj")
        return [(one, "kv_proj", other, "kv_proj")] if both else []


class Streams(Walk):
    """HC and mHC: N streams (B, T, N, D), read, mixed and written with weights of each token."""

    def flow(self, moment: Moment) -> Flow:
        _, maps, write = moment.carry
        read = self._read_weights(moment).double()
        return Flow(read, None if maps is None else maps.double(), write.double(), moment.y)

    def closing(self, state: Tensor) -> Tensor:
        n = state.shape[2]
        factor = 1.0 if self.model.residual_ends.exit_reduce == "sum" else 1.0 / n
        return state.new_full(state.shape[:3], factor, dtype=torch.float64)

    def residual_map(self, moment: Moment) -> Tensor:
        _, maps, _ = moment.carry
        if maps is None:
            n = moment.before.shape[2]
            return torch.eye(n, dtype=torch.float64).expand(*moment.y.shape[:2], n, n)
        return maps.double()

    def _read_weights(self, moment: Moment) -> Tensor:
        """a (B, T, N)."""
        connection, _, _ = self.site(moment.j)
        first = connection.coefficients(moment.before)[0]
        return first[..., 0] if first.ndim == 4 else first  # HC's A has the read as its column 0


class _Forced(tuple[Any, ...]):
    """Sources of which the next block boundary reads the newest alone: the reference code's skip."""


class Sources(Walk):
    """Full and Block AttnRes: a tuple of sources (B, T, D), None where nothing was written."""

    def position(self, l: int, state: Any, raw: Tensor | None = None) -> Tensor:
        """The mixture that the next attention reads; after the last layer, the final one."""
        if l == self.n_layers:
            return self.close(state)
        return self.read(2 * l, state)[0] if raw is None else raw

    def silent(self, j: int, state: Any) -> Any:
        return state

    def reference_skip(self, l: int, state: Any) -> Any:
        return _Forced(state)

    def read(self, j: int, state: Any) -> tuple[Tensor, Tensor, Any]:
        if isinstance(state, _Forced) and self._boundary(j):
            newest = newest_source(state)
            return newest, self.site(j)[2](newest), tuple(state)
        return super().read(j, state)

    def step(self, j: int, state: Any) -> Moment:
        moment = super().step(j, state)
        if isinstance(state, _Forced) and not self._boundary(j):
            return Moment(j, state, moment.raw, moment.u, moment.y, moment.carry, _Forced(moment.after))
        return moment

    def run(self, state: Any, start: int = 0, stop: int | None = None) -> Any:
        if not isinstance(state, _Forced):
            return super().run(state, start, stop)
        for moment in self.moments(state, start, stop):
            state = moment.after
        return state

    def close(self, state: Any) -> Tensor:
        return newest_source(state) if isinstance(state, _Forced) else super().close(state)

    def travelling(self, a: int, b: int) -> list[Exchange]:
        """The mixers that form the layers' right boundaries: of the next attention, or of the end."""
        one, other = self._right(a), self._right(b)
        return [] if one is None or other is None else [(one, "mix", other, "mix")]

    def slots(self, state: Any) -> Tensor:
        return torch.ones(1, dtype=torch.float64, device=state[0].device)

    def flow(self, moment: Moment) -> Flow:
        before, after = len(moment.before), len(moment.after)
        read = self._spread(moment.before, self._weights(moment.j, moment.before))
        index = getattr(self.site(moment.j)[0], "source", after - 1)
        write = read.new_zeros(*read.shape[:2], after)
        write[..., index] = 1.0
        move = torch.eye(after, before, dtype=read.dtype, device=read.device).expand(*read.shape[:2], after, before)
        return Flow(read, move, write, moment.y)

    def closing(self, state: Any) -> Tensor:
        return self._spread(state, self._weights(2 * self.n_layers, state))

    def depth_weights(self, j: int, state: Any) -> tuple[Tensor, int | None]:
        weights = self._spread(state, self._weights(j, state)).movedim(-1, 0)
        connection = None if j == 2 * self.n_layers else self.site(j)[0]
        running = getattr(connection, "source", None)
        held = running is not None and running < len(state) and state[running] is not None
        return weights, running if held else None

    def _weights(self, j: int, state: Any) -> Tensor:
        """(present sources, B, T)."""
        holder = self.model.residual_ends if j == 2 * self.n_layers else self.site(j)[0]
        if holder.mix is None:
            return torch.ones(1, *state[0].shape[:2], dtype=torch.float64, device=state[0].device)
        return holder.mix.weights(tuple(state)).double()

    def _spread(self, state: Any, weights: Tensor) -> Tensor:
        """Weights of the sources there are, over all places: (B, T, S)."""
        spread = weights.new_zeros(*weights.shape[1:], len(state))
        spread[..., [i for i, source in enumerate(state) if source is not None]] = weights.movedim(0, -1)
        return spread

    def _boundary(self, j: int) -> bool:
        """Whether attention sublayer j begins a block of sources."""
        if j % 2 == 1:
            return False
        source = getattr(self.site(j)[0], "source", None)
        return source is None or j == 0 or self.site(j - 1)[0].source != source

    def _right(self, l: int) -> Any:
        if l == self.n_layers - 1:
            return self.model.residual_ends
        return self.site(2 * l + 2)[0] if self._boundary(2 * l + 2) else None


def newest_source(state: Any) -> Tensor:
    """The last source that was written."""
    return next(source for source in reversed(state) if source is not None)


def hold(norm: Any, x: Tensor) -> Callable[[Tensor], Tensor]:
    """A norm as the linear map it is for x: its statistics held. Equal to the norm at x itself."""
    centred = isinstance(norm, nn.LayerNorm) or type(norm).__name__ == "LayerNorm"
    wide = x.double()
    if centred:
        wide = wide - wide.mean(-1, keepdim=True)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps) * norm.weight.double()

    def held(part: Tensor) -> Tensor:
        part = part.double()
        return (part - part.mean(-1, keepdim=True) if centred else part) * scale

    return held


def scalar_of(flow: Flow, moment: Moment) -> Tensor | None:
    """The factor (B, T) nearest to a flow's post-norm at what it normed; None without one."""
    if flow.norm is None:
        return None
    assert flow.move is not None
    total = flow.move[..., 0, :] * moment.before.double() + flow.write * flow.written.double()
    return nearest_factor(moment.after, total)


_VIEWS: dict[str, type[Walk]] = {
    "pre_ln": Additive,
    "sandwich_ln": Additive,
    "lns": Additive,
    "deepnorm": PostNorm,
    "keel": PostNorm,
    "hc": Streams,
    "mhc": Streams,
    "full_attnres": Sources,
    "block_attnres": Sources,
    "moda": Depth,
    "depth_mup": ScaledAdditive,
    "complete_p": ScaledAdditive,
}
