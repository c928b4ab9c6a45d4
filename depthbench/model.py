"""A residual design on OLMo-core's Transformer: the one place that meets its model classes (MoDA's attention apart).

The backbone is the paper's: LLaMA-like blocks, RoPE (theta 10000), RMSNorm (eps 1e-6), SwiGLU, no biases, untied
embeddings, truncated-normal initialisation (std 0.02). `open` and `close` belong to the model, not to its first and
last block, so that any block can be skipped or exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from olmo_core.config import DType
from olmo_core.nn.feed_forward import FeedForwardConfig
from olmo_core.nn.layer_norm import LayerNormConfig, LayerNormType
from olmo_core.nn.lm_head import LMOutputWithLoss
from olmo_core.nn.transformer import Transformer, TransformerBlock, TransformerBlockConfig, TransformerConfig
from torch import Tensor

from depthbench import designs
from depthbench.designs.base import Design, Site, State
from depthbench.shapes import Shape

NORM_EPS = 1e-6
ROPE_THETA = 10_000
INIT_STD = 0.02


@dataclass
class DesignBlockConfig(TransformerBlockConfig):
    """OLMo-core's block configuration with a design in it."""

    design: str = "pre_ln"
    options: dict[str, Any] = field(default_factory=dict)

    def build(
        self, *, d_model: int, block_idx: int, n_layers: int, init_device: str = "cpu", cache: Any = None
    ) -> DesignBlock:
        kwargs = self.as_dict(exclude_none=True, recurse=False)
        for key in ("name", "design", "options"):
            kwargs.pop(key)
        return DesignBlock(
            design=designs.configure(self.design, **self.options),
            d_model=d_model,
            block_idx=block_idx,
            n_layers=n_layers,
            init_device=init_device,
            cache=cache,
            **kwargs,
        )


class DesignBlock(TransformerBlock):
    """Attention and feed-forward, each reading and writing through the design's connection."""

    def __init__(self, *, design: Design, layer_norm: LayerNormConfig, init_device: str = "cpu", **kwargs: Any):
        super().__init__(layer_norm=layer_norm, init_device=init_device, **kwargs)
        # The stock block's additive stream is not used: the connection is the residual.
        del self.attention_residual_stream, self.feed_forward_residual_stream
        self.design = design
        self.attention = design.attention(self.attention)
        kv_dim = cast(Any, self.attention).w_k.out_features
        self.attention_residual, self.feed_forward_residual = (
            design.connection(make_site(j, self.n_layers, self.d_model, kv_dim, layer_norm, init_device))
            for j in (2 * self.block_idx, 2 * self.block_idx + 1)
        )

    def forward(self, x: State, *, loss_div_factor: Any = None, **kwargs: Any) -> State:
        del loss_div_factor
        x = self.attention_residual(x, self.attention, self.attention_norm, **kwargs)
        return self.feed_forward_residual(x, self.feed_forward, self.feed_forward_norm)

    def apply_compile(self) -> None:
        self.design.compile(self)

    def apply_tp(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("tensor parallelism does not fit a state that crosses layers; use DDP, FSDP or HSDP")

    def apply_cp(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("context parallelism is not supported; use DDP, FSDP or HSDP")

    def apply_pp(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "pipeline parallelism does not fit a state that crosses layers; use DDP, FSDP or HSDP"
        )


class DesignTransformer(Transformer):
    """A Transformer whose blocks pass a design's state instead of one residual tensor."""

    def __init__(self, *, design: Design, block: DesignBlockConfig, **kwargs: Any):
        super().__init__(block=block, **kwargs)
        assert block.layer_norm is not None
        self.design = design
        kv_dim = cast(Any, self.blocks["0"]).attention.w_k.out_features
        self.residual_ends = design.ends(
            make_site(2 * self.n_layers, self.n_layers, self.d_model, kv_dim, block.layer_norm, self.init_device)
        )
        self.residual_ends.join(
            [
                connection
                for block in cast(Any, self.blocks).values()
                for connection in (block.attention_residual, block.feed_forward_residual)
            ]
        )
        # The parent cached its counts before the ends existed.
        for name in ("num_params", "num_non_embedding_params"):
            self.__dict__.pop(name, None)
            getattr(self, name)

    @torch.no_grad()
    def init_weights(self, **kwargs: Any) -> torch.Generator:
        generator = super().init_weights(**kwargs)
        for block in self.blocks.values():
            self.design.finish_init(block, std=self.init_std, generator=generator)
        return generator

    def forward(self, input_ids: Tensor, *, labels: Tensor | None = None, **kwargs: Any) -> Tensor | LMOutputWithLoss:
        """Logits (B, T, V) of token ids (B, T), or OLMo-core's loss output when `labels` are given."""
        input_ids, labels, all_block_kwargs, per_block_kwargs, lm_head_kwargs = self._prepare_inputs(
            input_ids, labels, **kwargs
        )
        state = self.residual_ends.open(self.embeddings(input_ids))
        for key, block in self.blocks.items():
            state = block(state, **all_block_kwargs, **per_block_kwargs.get(int(key), {}))
        if labels is not None:
            lm_head_kwargs["labels"] = labels
        return self.lm_head(self.residual_ends.close(state), **lm_head_kwargs)


@dataclass
class DesignTransformerConfig(TransformerConfig):
    """OLMo-core's model configuration with a design in it; survives its JSON round trip."""

    design: str = "pre_ln"
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, *, init_device: str = "cpu") -> DesignTransformer:
        return DesignTransformer(
            design=designs.configure(self.design, **self.options),
            d_model=self.d_model,
            vocab_size=self.vocab_size,
            n_layers=self.n_layers,
            block=cast(DesignBlockConfig, self.block),
            lm_head=self.lm_head,
            dtype=self.dtype.as_pt(),
            init_method=self.init_method,
            init_device=init_device,
            init_seed=self.init_seed,
            init_std=self.init_std,
        )

    @property
    def shape(self) -> Shape:
        """The shape this configuration was made from."""
        block = cast(Any, self.block)
        return Shape(
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=block.sequence_mixer.n_heads,
            n_kv_heads=block.sequence_mixer.n_kv_heads,
            d_ff=block.feed_forward.hidden_size,
            vocab_size=self.vocab_size,
        )

    @property
    def num_params(self) -> int:
        return self.shape.num_params(self.design, **self.options).total


def make_site(
    sublayer: int, n_layers: int, d_model: int, kv_dim: int, layer_norm: LayerNormConfig, device: str
) -> Site:
    """The site of a sublayer, with the block's norm as the kind of norm a connection makes."""
    dtype = layer_norm.dtype.as_pt() if layer_norm.dtype is not None else torch.float32
    return Site(
        sublayer=sublayer,
        n_sublayers=2 * n_layers,
        d_model=d_model,
        kv_dim=kv_dim,
        eps=layer_norm.eps or NORM_EPS,
        make_norm=lambda: layer_norm.build(d_model, init_device=device),
        device=device,
        dtype=dtype,
    )


def model_config(
    design: str,
    shape: Shape,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    init_std: float = INIT_STD,
    **options: Any,
) -> DesignTransformerConfig:
    """OLMo-core's configuration of `design` at `shape`; raises UnknownDesign or ValueError for unknown options."""
    chosen = designs.configure(design, **options)
    # OLMo-core has no float64: such a model is built in float32 and widened, norms and RoPE in the input's type.
    wide = dtype == torch.float64
    config = DesignTransformerConfig.llama_like(
        d_model=shape.d_model,
        vocab_size=shape.vocab_size,
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        feed_forward=FeedForwardConfig(
            hidden_size=shape.d_ff, bias=False, dtype=DType.float32 if wide else DType.from_pt(dtype)
        ),
        layer_norm_eps=NORM_EPS,
        rope_theta=ROPE_THETA,
        rope_full_precision=not wide,
        dtype=DType.float32 if wide else DType.from_pt(dtype),
        init_seed=seed,
        init_std=init_std,
        design=design,
        options=options,
    )
    block = cast(TransformerBlockConfig, config.block)
    assert block.layer_norm is not None and config.lm_head.layer_norm is not None
    # OLMo-core gives the block and the head one object between them.
    block.layer_norm = replace(block.layer_norm, full_precision=not wide)
    config.lm_head.layer_norm = replace(config.lm_head.layer_norm, full_precision=not wide)
    if chosen.block_norm == "layer":  # the final norm stays RMSNorm, as everywhere
        block.layer_norm = replace(block.layer_norm, name=LayerNormType.default, bias=False)
    config.block = DesignBlockConfig(**block.as_dict(recurse=False), design=design, options=options)
    return cast(DesignTransformerConfig, config)


def build_model(
    design: str,
    shape: Shape,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    init_std: float = INIT_STD,
    **options: Any,
) -> DesignTransformer:
    """An initialised OLMo-core Transformer of `design` at `shape`.

    `model(input_ids)` maps (B, T) int64 to logits (B, T, V). Options are the design's (see
    `designs.get(design).options`). Raises UnknownDesign for an unknown name, ValueError for an unknown option.
    """
    config = model_config(design, shape, seed=seed, dtype=dtype, init_std=init_std, **options)
    model = config.build(init_device="meta")
    model.init_weights(device=torch.device(device))
    return widen(model) if dtype == torch.float64 else model


def widen(model: DesignTransformer, *, positions: int = 4096) -> DesignTransformer:
    """The model in float64, in place, RoPE's tables too: OLMo-core makes them in float32, which an oracle would see.

    angle[t, i] = t theta^(-2 i / head_dim) for t < `positions`, with each layer's own theta. Frequencies under a
    scaling rule are OLMo-core's, to float32, and so are angles of longer texts.
    """
    for block in model.blocks.values():
        rope = cast(Any, block).attention.rope
        frequency, factor = rope.theta ** (-torch.arange(0, rope.dim, 2, dtype=torch.float64) / rope.dim), 1.0
        if rope.scaling is not None:
            frequency, factor = rope.scaling.compute_scaled_inv_freq(rope.theta, rope.dim, torch.device("cpu"))
        angle = torch.outer(torch.arange(positions, dtype=torch.float64), frequency.double()).repeat(1, 2)
        rope._cache["rope_pos_sin"], rope._cache["rope_pos_cos"] = angle.sin() * factor, angle.cos() * factor
    return model.double()
