"""What the config.json of a native OLMo-core step folder says, in this package's words.

The file names a block type and a few settings; a setting that this reader does not know, and that is not at rest, is
refused, since the weights may need it. Spellings that older runs left are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from depthbench import designs
from depthbench.checkpoints.common import CheckpointError
from depthbench.shapes import Shape

Layout = Literal["plain", "hc", "mhc_liger", "mhc_torch", "attnres", "moda"]
ATTNRES_EPS = 1e-5  # of the reference's mixers, which norm the branch inputs too: it does not pass the model's 1e-6 on

_DESIGNS = {
    "default": "pre_ln",
    "peri_norm": "sandwich_ln",
    "default_scaled": "lns",
    "default_depth_scaled": "lns",
    "deepnorm": "deepnorm",
    "keel": "keel",
    "hc": "hc",
    "mhc": "mhc",
    "attnres": "full_attnres",
    "attn_res": "full_attnres",
    "moda": "moda",
    "depth_mup": "depth_mup",
    "completep": "complete_p",
}
_REFUSED = {
    "post_norm": "a Post-LN block is no design of this package",
    "post_norm_moda": "MoDA is here in its Pre-LN form only",
    "reordered_norm": "norms that stand after the branch only are no design of this package",
}


@dataclass(frozen=True)
class NativeModel:
    """A published model's design, shape and numerics.

    `eps` is of the block's norms, `first_eps` of the very first, `final_eps` of the one before the head.
    """

    design: str
    shape: Shape
    layout: Layout
    eps: float
    first_eps: float
    final_eps: float
    rope_theta: float
    options: dict[str, Any] = field(default_factory=dict)


def read_model(config: Mapping[str, Any]) -> NativeModel:
    """The model that a config describes; raises CheckpointError in words for what this package cannot express."""
    model = _section(config, "model")
    _at_rest("model", model, {"name": "default", "embed_scale": 1.0}, _MODEL_KEYS)
    block = _section(model, "block", "model.block")
    if str(model.get("_CLASS_", "")).startswith("depthbench."):
        raise CheckpointError("this is a resume checkpoint of a run of ours; finish the run and open its folder")
    name = str(block.get("name", "default"))
    if name == "default" and block.get("hyper_connections"):
        kind = str(block["hyper_connections"].get("kind", "hc"))
        name = "hc" if kind == "hc" else "mhc"
    if name == "default" and block.get("attnres_block_size") is not None:
        name = "attnres"
    if name not in _DESIGNS:
        reason = _REFUSED.get(name, f"known are {', '.join(_DESIGNS)}")
        raise CheckpointError(f"model.block.name is {name!r}: {reason}")
    used = {"hc": "hyper_connections", "mhc": "hyper_connections", "moda": "moda"}.get(name, "")
    _at_rest(
        "model.block",
        block,
        {"dropout": 0.0, "attention_residual_alpha": 1.0, "feed_forward_residual_alpha": 1.0},
        {*_BLOCK_KEYS, used, *(["attnres_block_size"] if _DESIGNS[name] == "full_attnres" else [])},
    )
    _check_overrides(model, block)
    norm = _section(block, "layer_norm", "model.block.layer_norm")
    final = _section(_section(model, "lm_head", "model.lm_head"), "layer_norm", "model.lm_head.layer_norm")
    shape, theta = _shape(model, block)
    kinds = ("rms", "fused_rms", "default") if name == "deepnorm" else ("rms", "fused_rms")
    eps, final_eps = _eps("model.block.layer_norm", norm, kinds), _eps("model.lm_head.layer_norm", final, kinds[:2])
    design, first_eps = _DESIGNS[name], eps
    layout: Layout = "plain"
    options: dict[str, Any] = {}
    if name in ("hc", "mhc"):
        layout, options = _streams(name, block.get("hyper_connections") or {})
    elif design == "full_attnres":
        size = int(block.get("attnres_block_size") or 1)
        layout, options = "attnres", {"norm_eps": ATTNRES_EPS}
        if size != 1:
            design, options = "block_attnres", {"block_size_sublayers": size, "norm_eps": ATTNRES_EPS}
        eps = final_eps = ATTNRES_EPS
    elif name == "moda":
        layout, options = "moda", _moda(block.get("moda") or {})
    elif name == "deepnorm":
        options = {"norm": "layer" if norm.get("name") == "default" else "rms"}
    elif name == "default_depth_scaled":
        options = {"depth_scaled": True}
    elif design in ("depth_mup", "complete_p"):
        options = {"base_layers": int(_section_value(block, "residual_scaling_base_depth"))}
    defaults = designs.get(design).options
    options = {key: value for key, value in options.items() if defaults[key] != value}
    return NativeModel(design, shape, layout, eps, first_eps, final_eps, theta, options)


_CLASS_KEYS = {"_CLASS_", "type", "dtype", "name", "full_precision"}
_MODEL_KEYS = {
    *_CLASS_KEYS,
    *("d_model", "vocab_size", "n_layers", "block", "lm_head", "block_overrides"),
    *("init_method", "init_seed", "init_std", "embedding_init_std", "freeze_params"),
}
_BLOCK_KEYS = {
    *_CLASS_KEYS,
    *("sequence_mixer", "attention", "layer_norm", "feed_forward", "residual_scaling_base_depth", "moda_skip_ffn_kv"),
}
_HYPER_KEYS = {
    *("_CLASS_", "kind", "num_residual_streams", "collapse", "gating_factor_init", "sinkhorn_tau"),
    *("disable_static_weight_decay", "scale_output_init_by_sqrt_n"),
    *("liger_phi_dtype", "liger_allow_fp32", "liger_rms_eps", "liger_pre_eps", "liger_sinkhorn_eps", "liger_post_mult"),
}


def _section(parent: Mapping[str, Any], key: str, where: str | None = None) -> dict[str, Any]:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise CheckpointError(f"the config has no section {where or key}; a native OLMo-core config.json is expected")
    return value


def _section_value(section: Mapping[str, Any], key: str) -> Any:
    if section.get(key) is None:
        raise CheckpointError(f"the config does not say {key}")
    return section[key]


def _at_rest(where: str, section: Mapping[str, Any], rest: Mapping[str, Any], known: set[str]) -> None:
    """Refuse a setting that is neither known nor off: `rest` gives the values, beside None and False, that are off."""
    for key, value in section.items():
        if key in rest:
            if value is not None and value != rest[key]:
                raise CheckpointError(f"{where}.{key} is {value!r}; only {rest[key]!r} is supported")
        elif key not in known and value not in (None, False):
            raise CheckpointError(f"{where}.{key} is {value!r}, a setting this package does not know")


def _check_overrides(model: Mapping[str, Any], block: Mapping[str, Any]) -> None:
    """Blocks may differ only in what MoDA's last block says of its own unused projection."""

    def comparable(section: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in section.items() if k != "moda_skip_ffn_kv" and v is not None}

    for index, override in (model.get("block_overrides") or {}).items():
        if not isinstance(override, dict) or comparable(override) != comparable(block):
            raise CheckpointError(f"model.block_overrides.{index} differs from model.block; all blocks must be alike")


def _eps(where: str, norm: Mapping[str, Any], kinds: tuple[str, ...]) -> float:
    name = norm.get("name", "default")
    if name not in kinds:
        raise CheckpointError(f"{where}.name is {name!r}; supported: {', '.join(kinds)}")
    _at_rest(where, norm, {"elementwise_affine": True}, {*_CLASS_KEYS, "eps"})
    return float(norm["eps"]) if norm.get("eps") is not None else 1e-5  # OLMo-core's default


def _shape(model: Mapping[str, Any], block: Mapping[str, Any]) -> tuple[Shape, float]:
    mixer = block.get("sequence_mixer") or block.get("attention")
    mixer = _section({"sequence_mixer": mixer}, "sequence_mixer", "model.block.sequence_mixer")
    feed_forward = _section(block, "feed_forward", "model.block.feed_forward")
    known = {*_CLASS_KEYS, "n_heads", "n_kv_heads", "head_dim", "rope", "backend", "use_flash"}
    _at_rest("model.block.sequence_mixer", mixer, {"name": "default", "dropout": 0.0}, known)
    _at_rest(
        "model.block.feed_forward",
        feed_forward,
        {"name": "default", "activation": "silu"},
        {*_CLASS_KEYS, "hidden_size"},
    )
    head_keys = {*_CLASS_KEYS, "layer_norm", "loss_implementation"}
    _at_rest("model.lm_head", _section(model, "lm_head", "model.lm_head"), {"name": "default"}, head_keys)
    rope = _section(mixer, "rope", "model.block.sequence_mixer.rope")
    _at_rest(
        "model.block.sequence_mixer.rope",
        rope,
        {"name": "default", "partial_rotary_factor": 1.0},
        {*_CLASS_KEYS, "theta"},
    )
    given = {
        "n_layers": _section_value(model, "n_layers"),
        "d_model": _section_value(model, "d_model"),
        "vocab_size": _section_value(model, "vocab_size"),
        "n_heads": _section_value(mixer, "n_heads"),
        "n_kv_heads": mixer.get("n_kv_heads"),
        "d_ff": _section_value(feed_forward, "hidden_size"),
    }
    try:
        shape = Shape.model_validate(given)
    except ValueError as error:
        raise CheckpointError(f"the config's sizes do not fit together: {error}") from None
    if mixer.get("head_dim") not in (None, shape.head_dim):
        raise CheckpointError(
            f"head_dim is {mixer['head_dim']}, not d_model / n_heads = {shape.head_dim}: not supported"
        )
    return shape, float(rope.get("theta") or 500_000)  # OLMo-core's default


def _streams(name: str, hyper: Mapping[str, Any]) -> tuple[Layout, dict[str, Any]]:
    """Layout and options of Hyper-Connections (`hc`) and of the two back ends of mHC (`liger_mhc`, `mhc`)."""
    where = "model.block.hyper_connections"
    kind = str(hyper.get("kind") or name)
    if kind == "mhc_static":
        raise CheckpointError(f"{where}.kind is {kind!r}: maps that do not depend on the token are no design here")
    if kind not in {"hc": ("hc",), "mhc": ("mhc", "liger_mhc")}[name]:
        raise CheckpointError(f"{where}.kind is {kind!r} in a block {name!r}: not supported")
    collapse = None if hyper.get("collapse") == "auto" else hyper.get("collapse")
    rest: dict[str, Any] = {"sinkhorn_iters": 20, "tanh": kind == "hc"}
    rest |= {"liger_pre_eps": 0.0, "liger_sinkhorn_eps": 1e-6, "liger_post_mult": 2.0} if kind == "liger_mhc" else {}
    rest |= {"collapse": "sum"} if kind == "hc" else {}
    _at_rest(where, {**hyper, "collapse": collapse}, rest, _HYPER_KEYS)
    options: dict[str, Any] = {"n_streams": int(hyper.get("num_residual_streams") or 4), "norm_eps": 1e-8}
    if kind == "hc":
        return "hc", options
    if kind == "mhc":
        return "mhc_torch", options | {"sinkhorn": "paper", "exit_reduce": collapse or "sum"}
    options["norm_eps"] = float(hyper.get("liger_rms_eps") or 1e-6)
    return "mhc_liger", options | {"sinkhorn": "reference", "exit_reduce": collapse or "mean"}


def _moda(moda: Mapping[str, Any]) -> dict[str, Any]:
    rest = {"attention_scale": None, "extra_attn_kv_proj": False}
    known = {"_CLASS_", "backend", "cache_post_norm_k", "extra_ffn_kv_proj", "depth_bs", "depth_warps"}
    _at_rest("model.block.moda", moda, rest, known)
    return {"rotate_depth_keys": False, "ffn_kv": bool(moda.get("extra_ffn_kv_proj", True))}
