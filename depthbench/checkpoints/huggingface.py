"""Llama-like models of Hugging Face `transformers`, opened as `pre_ln` so that every probe runs on them.

Llama, Mistral, Qwen2 (biases on queries, keys and values) and Qwen3 (a norm on each head's query and key). The
library itself is not needed for a folder of safetensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from olmo_core.nn.layer_norm import LayerNormConfig, LayerNormType
from olmo_core.nn.rope import RoPEScalingConfig, StepwiseRoPEScalingConfig
from safetensors import SafetensorError, safe_open
from torch import Tensor

from depthbench.checkpoints.common import (
    CheckpointError,
    Opened,
    Source,
    check_dtype,
    fill_model,
    foreign_spec,
    plain_name,
    read_json,
)
from depthbench.model import DesignTransformer, model_config
from depthbench.shapes import Shape

MODELS = ("llama", "mistral", "qwen2", "qwen3")
_AFTER = "its norms stand after the branches, so it is no Pre-LN model"
_REFUSED = {"olmo2": _AFTER, "olmo3": _AFTER}

_NAMES = {
    "embeddings.weight": "model.embed_tokens.weight",
    "lm_head.norm.weight": "model.norm.weight",
    "lm_head.w_out.weight": "lm_head.weight",
}
_PARTS = {
    "attention.w_q": "self_attn.q_proj",
    "attention.w_k": "self_attn.k_proj",
    "attention.w_v": "self_attn.v_proj",
    "attention.w_out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "attention_norm": "input_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward_norm": "post_attention_layernorm",
}


def from_transformers(
    model: Any, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> DesignTransformer:
    """A `transformers` causal language model as a `pre_ln` model of this package, with a copy of its weights.

    The logits are equal up to rounding. `device` and `dtype`: None takes the model's own. Raises CheckpointError in
    words for a model that is not Llama-like.
    """
    state = model.state_dict()
    first = next(iter(state.values()))
    return _convert(
        model.config.to_dict(),
        set(state),
        lambda name: state[name].clone(),
        device=first.device if device is None else device,
        dtype=first.dtype if dtype is None else dtype,
        where=type(model).__name__,
    )


def open_huggingface(
    folder: Path,
    config: Mapping[str, Any],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Opened:
    """The model of a folder with a `transformers` config.json and safetensors; raises CheckpointError in words."""
    files = _tensor_files(folder)

    def read(name: str) -> Tensor:
        try:
            with safe_open(files[name], framework="pt") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{files[name]} cannot be read: {error}") from None

    model = _convert(config, set(files), read, device=device, dtype=dtype, where=str(folder))
    spec = foreign_spec("pre_ln", _shape(config), {}, {})
    tokenizer = str(folder) if (folder / "tokenizer.json").exists() else None
    return Opened(model, spec, Source("hugging-face", str(folder), tokenizer=tokenizer))


def _tensor_files(folder: Path) -> dict[str, Path]:
    """The file of every tensor; the index of a split model is followed within the folder only."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict):
            raise CheckpointError(f"{index} has no weight_map")
        return {name: folder / plain_name(file, str(index)) for name, file in places.items()}
    single = folder / "model.safetensors"
    if not single.exists():
        raise CheckpointError(
            f"{folder} has no model.safetensors; pickled weights (.bin, .pt) are not opened: convert them"
        )
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{single} cannot be read: {error}") from None


def _convert(
    config: Mapping[str, Any],
    names: set[str],
    read: Callable[[str], Tensor],
    *,
    device: str | torch.device,
    dtype: torch.dtype,
    where: str,
) -> DesignTransformer:
    check_dtype(dtype)
    try:
        model = _empty(config, dtype)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: its config is malformed: {error!r}") from None
    tied = bool(config.get("tie_word_embeddings"))
    sources = {name: _source(name, tied) for name in model.state_dict()}
    if missing := sorted(set(sources.values()) - names):
        raise CheckpointError(f"{where} lacks {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}")
    # Old files keep RoPE's fixed frequencies, which are computed here; a tied head may be stored all the same.
    unused = {name for name in names - set(sources.values()) if not name.endswith("rotary_emb.inv_freq")}
    if extra := sorted(unused - ({"lm_head.weight"} if tied else set())):
        raise CheckpointError(f"{where} holds {', '.join(extra[:3])}, which a Llama-like model has no use for")
    return fill_model(model, sources, lambda name: read(sources[name]), device=device, dtype=dtype, where=where)


def _source(name: str, tied: bool) -> str:
    if name in _NAMES:
        return _NAMES["embeddings.weight"] if tied and name == "lm_head.w_out.weight" else _NAMES[name]
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)
    assert match is not None
    return f"model.layers.{match[1]}.{_PARTS[match[2]]}.{match[3]}"


def _shape(config: Mapping[str, Any]) -> Shape:
    try:
        shape = Shape(
            n_layers=config["num_hidden_layers"],
            d_model=config["hidden_size"],
            n_heads=config["num_attention_heads"],
            n_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            d_ff=config["intermediate_size"],
            vocab_size=config["vocab_size"],
        )
    except KeyError as error:
        raise CheckpointError(f"the config does not say {error.args[0]}") from None
    except ValueError as error:
        raise CheckpointError(f"the config's sizes do not fit together: {error}") from None
    if config.get("head_dim") not in (None, shape.head_dim):
        raise CheckpointError(
            f"head_dim is {config['head_dim']}, not hidden_size / num_attention_heads = {shape.head_dim}: not supported"
        )
    return shape


def _empty(config: Mapping[str, Any], dtype: torch.dtype) -> DesignTransformer:
    kind = config.get("model_type")
    if kind not in MODELS:
        reason = _REFUSED.get(str(kind), f"supported: {', '.join(MODELS)}")
        raise CheckpointError(f"model_type {kind!r} is not opened: {reason}")
    if config.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"hidden_act is {config['hidden_act']!r}; only 'silu' is supported")
    windowed = config.get("sliding_window") is not None and config.get("use_sliding_window", kind == "mistral")
    if windowed or any(layer != "full_attention" for layer in config.get("layer_types") or ()):
        raise CheckpointError("attention within a sliding window is not supported; every layer must see the whole text")
    if config.get("quantization_config") is not None:
        raise CheckpointError("quantised weights are not supported")
    made = model_config("pre_ln", _shape(config), dtype=dtype)
    block, head = cast(Any, made.block), cast(Any, made.lm_head)
    attention = block.sequence_mixer
    eps = float(config.get("rms_norm_eps", 1e-6))
    block.layer_norm.eps = head.layer_norm.eps = eps
    attention.rope.theta, attention.rope.scaling = _rope(config)
    attention.bias = bool(config.get("attention_bias")) or kind == "qwen2"
    block.feed_forward.bias = bool(config.get("mlp_bias"))
    if kind == "qwen3":
        attention.use_head_qk_norm = True
        attention.qk_norm = LayerNormConfig(name=LayerNormType.rms, eps=eps, bias=False)
    model = made.build(init_device="meta")
    if kind == "qwen2":
        for layer in model.blocks.values():
            cast(Any, layer).attention.w_out.bias = None
        for name in ("num_params", "num_non_embedding_params"):  # cached while the biases were there
            model.__dict__.pop(name, None)
    return model


def _rope(config: Mapping[str, Any]) -> tuple[float, RoPEScalingConfig | None]:
    """Base and scaling of the rotary positions, as `transformers` 5 keeps them (`rope_parameters`) or 4 did."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    if kind == "default" and rope.get("partial_rotary_factor", 1.0) == 1.0:
        return theta, None
    if kind != "llama3":
        raise CheckpointError(f"rotary positions of type {kind!r} are not supported; 'default' and 'llama3' are")
    return theta, StepwiseRoPEScalingConfig(
        factor=rope["factor"],
        low_freq_proportion=1 - 1 / rope["low_freq_factor"],
        high_freq_proportion=1 / rope["high_freq_factor"],
        old_context_len=rope["original_max_position_embeddings"],
    )
