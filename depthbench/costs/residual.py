"""What does the residual path of each design cost per token? Products, elements held, moved and kept.

All numbers are of the whole path from the embedding to the final norm, the norms of the branches among it, so that
Pre-LN is not zero where it moves or keeps something. A design of its own can say them itself: a method
`residual_cost(self, shape)` on its class that returns the fields of `ResidualCost` by name is asked first.

How elements are counted, in units of one number of one token:

    moved         one kernel a read (with the branch's norm) and one a write: each reads its inputs once and writes its
                  outputs once. The branch's own read of u and write of y are the branch's
    moved_by_op   the same, one tensor operation at a time: a norm reads and writes its tensor, and so on
    kept          what autograd keeps in eager float32 as built here, each storage once; inputs of the branches' own
                  products are the branches' (`memory.activation_bytes`)

Coefficients (N streams: N x N a token) are in `kept` but not in the others, where d-wide tensors dwarf them.

Legend: L n_layers, d d_model, J = 2L sublayers, N streams, k n_kv_heads * head_dim, S sources or slots of a read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from depthbench import designs
from depthbench.designs.base import Design
from depthbench.shapes import Shape


class NoCost(LookupError):
    """A registered design whose residual cost nobody has written down."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, kw_only=True)
class ResidualCost:
    """What the residual path costs a token of a forward pass.

    `product_flops`: two for every multiply-add of its products, rank-one updates among them, norms and plain sums not.
    `state`: elements that cross from one layer to the next where they are most. `moved`, `moved_by_op`, `kept`: see
    the module.
    """

    product_flops: int
    state: int
    moved: int
    moved_by_op: int
    kept: int


def residual_cost(design: str, shape: Shape, **options: Any) -> ResidualCost:
    """The cost of a design's residual path at a shape, per token.

    Raises UnknownDesign, ValueError for an option the design lacks, NoCost for a design that has no cost here.
    """
    configured = designs.configure(design, **options)
    own = getattr(configured, "residual_cost", None)
    if own is not None:
        return _checked(design, own(shape))
    if design not in _COSTS:
        names = ", ".join(field.name for field in fields(ResidualCost))
        raise NoCost(
            f"design {design!r} has no residual cost; give its class a method residual_cost(self, shape) that returns "
            f"a mapping of {names}, per token (depthbench.costs.residual says what each counts)"
        )
    return _COSTS[design](configured, shape)


def _checked(design: str, given: Mapping[str, int]) -> ResidualCost:
    wanted = {field.name for field in fields(ResidualCost)}
    if set(given) != wanted:
        raise NoCost(
            f"residual_cost of design {design!r} returns {', '.join(sorted(given)) or 'nothing'}; "
            f"it must return exactly {', '.join(sorted(wanted))}"
        )
    return ResidualCost(**given)


def _rms(d: int) -> int:
    """Kept by an eager RMSNorm: its input, the normed input, and 1 / RMS."""
    return 2 * d + 1


def _single(
    shape: Shape, *, moved: int = 5, moved_by_op: int = 5, kept: int | None = None, more_kept: int = 0
) -> ResidualCost:
    """A design with one residual tensor; `moved` in units of d a sublayer, `kept` elements a sublayer.

    Pre-LN's 5: the read takes h and gives u, the write takes h and y and gives h. The final norm moves 2 and keeps one
    norm's worth.
    """
    d, j = shape.d_model, shape.n_sublayers
    per_sublayer = _rms(d) if kept is None else kept
    return ResidualCost(
        product_flops=0,
        state=d,
        moved=(moved * j + 2) * d,
        moved_by_op=(moved_by_op * j + 2) * d,
        kept=per_sublayer * j + _rms(d) + more_kept,
    )


def _pre_ln(design: Any, shape: Shape) -> ResidualCost:
    return _single(shape)


def _scaled(design: Any, shape: Shape) -> ResidualCost:
    """A factor on the branch's input (LNS) or output (depth-muP): one more operation, none in a fused kernel."""
    return _single(shape, moved_by_op=7)


def _sandwich_ln(design: Any, shape: Shape) -> ResidualCost:
    d = shape.d_model
    plain = _single(shape, moved_by_op=7, kept=2 * _rms(d), more_kept=_rms(d) * design.embedding_norm)
    return _with_more(plain, moved=2 * d * design.embedding_norm, moved_by_op=2 * d * design.embedding_norm)


def _deepnorm(design: Any, shape: Shape) -> ResidualCost:
    """The branch reads the state as it is, so only the write moves: h and y in, h out."""
    d = shape.d_model
    kept = d + 2 if design.norm == "layer" else _rms(d)  # LayerNorm keeps its input, mean and 1 / deviation
    return _single(shape, moved=3, moved_by_op=7, kept=kept)


def _keel(design: Any, shape: Shape) -> ResidualCost:
    """Every sublayer but the first has a second norm and, but for one more, a factor on the skip."""
    d, j = shape.d_model, shape.n_sublayers
    by_op = 2 * (j - 1) + 2 * j  # post-norms, and the factor, which the code applies everywhere
    return _with_more(_single(shape), moved_by_op=by_op * d, kept=(j - 1) * _rms(d))


def _streams(shape: Shape, n: int, *, product: int, coefficients: int, first: int, mixes: bool) -> ResidualCost:
    """N streams: `product` flops a sublayer of the coefficients, `coefficients` elements kept of them a sublayer.

    Fused: the read takes N streams and gives u, the write takes N streams and y and gives N streams. By operation:
    norm of the streams 2N, coefficients N, read N + 1, branch's norm 2, mixing 2N, write 2N + 1. `first` is what the
    first state keeps, in units of d.
    """
    d, j = shape.d_model, shape.n_sublayers
    mixing = 2 * n * n * d if mixes else 0
    ends = n + (n + 1 + 2)  # open; close and the final norm
    return ResidualCost(
        product_flops=j * (product + 2 * n * d + mixing + 2 * n * d),  # coefficients, read, mix, rank-one write
        state=n * d,
        moved=(j * (3 * n + 2) + ends) * d,
        moved_by_op=(j * ((8 if mixes else 6) * n + 4) + ends) * d,
        kept=j * (n * d + _rms(d) + d + coefficients) - (n - first) * d + _rms(d),
    )


def _hc(design: Any, shape: Shape) -> ResidualCost:
    n, d = design.n_streams, shape.d_model
    kept = 2 * n * (n + 2) + n * (n + 1) + 2 * n  # products and their tanh, A, 1 / RMS, b
    return _streams(shape, n, product=2 * n * d * (n + 2), coefficients=kept, first=1, mixes=design.mix_streams)


def _mhc(design: Any, shape: Shape) -> ResidualCost:
    from depthbench.designs.mhc import ROUNDS

    n, d = design.n_streams, shape.d_model
    width = n * n + 2 * n
    if design.sinkhorn == "paper":
        rounds = (2 * ROUNDS + 2) * n * n  # every log-softmax, the exponential, the map laid out
    else:
        rounds = (2 * ROUNDS - 1) * (n * n + n) + 2 * n * n  # what every division takes; the softmax; the map
    kept = width + 1 + 3 * n + rounds  # products, 1 / RMS, the two sigmoids and the doubled one
    return _streams(shape, n, product=2 * n * d * width, coefficients=kept, first=n, mixes=True)


def source_counts(design: Any, shape: Shape) -> list[int]:
    """How many sources each read of an AttnRes design has: one for each of the J sublayers, and the last mixture."""
    from depthbench.designs.block_attn_res import block_size

    j = shape.n_sublayers
    size = block_size(j, getattr(design, "block_size_sublayers", 1))
    return [1 + -(-written // size) for written in range(j + 1)]


def _attnres(design: Any, shape: Shape) -> ResidualCost:
    """Keys and values: 2 d each a source and read. What a branch writes is a source as it is, or added to its block."""
    d, j = shape.d_model, shape.n_sublayers
    reads = source_counts(design, shape)
    mixed = reads[1:]  # the first sublayer has one source and no query
    openings = reads[-1] - 1  # blocks: their first output is stored as it is
    added = 3 * (j - openings)  # the others are added to their block's sum: two in, one out
    per_read = sum(mixed)
    return ResidualCost(
        product_flops=4 * d * per_read,
        state=reads[-1] * d,
        moved=(sum(reads) + j + 1 + added) * d,
        # norm of the sources 2S, keys S, values S + 1, then the norm of the mixture 2
        moved_by_op=(4 * per_read + j + 2 * (j + 1) + added) * d,
        # Sources, mixtures and their norms; logits and log-sums. Eager mixing keeps 1 / RMS of the sources beside.
        kept=(j + 1) * d + (j + 1) * _rms(d) - d + per_read + j + (0 if _all_known(design, shape) else j + 1),
    )


def _all_known(design: Any, shape: Shape) -> bool:
    """Whether every output is a source of its own, so that logits are made ahead (`designs.depth_store`)."""
    return source_counts(design, shape)[-1] == shape.n_sublayers + 1


def _moda(design: Any, shape: Shape) -> ResidualCost:
    """Depth scores and values: 2 d each a slot and read; the feed-forward's projection d -> 2k in all but the last."""
    d, layers, j = shape.d_model, shape.n_layers, shape.n_sublayers
    k = shape.n_kv_heads * shape.head_dim
    per_layer = 2 if design.ffn_kv else 1
    reads = sum(per_layer * layer for layer in range(layers))
    projected = (layers - 1) if design.ffn_kv else 0
    slots = layers + projected
    plain = _single(shape)
    return _with_more(
        plain,
        product_flops=4 * d * reads + projected * 4 * d * k,
        state=slots * 2 * k,
        moved=reads * 2 * k + projected * (d + 2 * k),
        moved_by_op=reads * 2 * k + projected * (d + 2 * k) + (layers - 1) * 3 * d,  # two outputs of attention joined
        # Room for J slots, weights of the reads, and queries before rotation; without groups, the attention's own
        # values lie with the slots.
        kept=2 * j * k
        + shape.n_heads * reads
        + (layers - 1) * d * design.rotate_depth_keys
        - (layers * d if k == d else 0),
    )


def _with_more(cost: ResidualCost, **more: int) -> ResidualCost:
    return ResidualCost(
        **{field.name: getattr(cost, field.name) + more.get(field.name, 0) for field in fields(ResidualCost)}
    )


_COSTS: dict[str, Callable[[Design, Shape], ResidualCost]] = {
    "pre_ln": _pre_ln,
    "sandwich_ln": _sandwich_ln,
    "lns": _scaled,
    "deepnorm": _deepnorm,
    "keel": _keel,
    "hc": _hc,
    "mhc": _mhc,
    "full_attnres": _attnres,
    "block_attnres": _attnres,
    "moda": _moda,
    "depth_mup": _scaled,
    "complete_p": _scaled,
}
