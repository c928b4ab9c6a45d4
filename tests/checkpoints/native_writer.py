"""Write step folders in the layout of the published checkpoints, from tables of names and shapes alone.

Names, shapes and settings are those of the reference repository's checkpoints; nothing here knows how this package
names its parameters or builds its models. Two writers of files: OLMo-core's own, and torch's.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from olmo_core.distributed.checkpoint import save_model_and_optim_state
from torch import Tensor, nn

import depthbench as db

SHAPE = db.Shape(n_layers=3, d_model=24, n_heads=4, n_kv_heads=2, d_ff=40, vocab_size=31)
N = 4  # streams
BLOCK_NAMES = {
    "pre_ln": "default",
    "sandwich_ln": "peri_norm",
    "lns": "default_scaled",
    "deepnorm": "deepnorm",
    "keel": "keel",
    "hc": "hc",
    "mhc_liger": "mhc",
    "mhc_torch": "mhc",
    "full_attnres": "attnres",
    "block_attnres": "attnres",
    "moda": "moda",
}
KINDS = tuple(BLOCK_NAMES)
BF16, FP32 = torch.bfloat16, torch.float32


def table(kind: str, s: db.Shape = SHAPE) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name -> shape (out, in) and dtype of every weight of a published model of this kind."""
    d, f, kv = s.d_model, s.d_ff, s.n_kv_heads * s.head_dim
    rows: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"embeddings.weight": ((s.vocab_size, d), BF16)}
    for i in range(s.n_layers):
        attention = f"blocks.{i}.attention." + ("attention." if kind == "moda" else "")
        feed_forward = f"blocks.{i}.feed_forward." + ("feed_forward." if kind == "moda" else "")
        for name, width in (("w_q", d), ("w_k", kv), ("w_v", kv), ("w_out", d)):
            rows[f"{attention}{name}.weight"] = ((width, d), BF16)
        rows[f"blocks.{i}.attention_norm.weight"] = ((d,), BF16)
        for name, size in (("w1", (f, d)), ("w2", (d, f)), ("w3", (f, d))):
            rows[f"{feed_forward}{name}.weight"] = (size, BF16)
        rows[f"blocks.{i}.feed_forward_norm.weight"] = ((d,), BF16)
        if kind in ("sandwich_ln", "keel"):
            if not (kind == "keel" and i == 0):
                rows[f"blocks.{i}.post_attention_norm.weight"] = ((d,), BF16)
            rows[f"blocks.{i}.post_feed_forward_norm.weight"] = ((d,), BF16)
        if kind == "moda" and i < s.n_layers - 1:
            rows[f"blocks.{i}.feed_forward.kv_proj.weight"] = ((2 * kv, d), BF16)
        if kind in ("full_attnres", "block_attnres"):
            for name in ("attn", "mlp") if i else ("mlp",):
                rows[f"blocks.{i}.{name}_res_proj.weight"] = ((1, d), FP32)
                rows[f"blocks.{i}.{name}_res_norm.weight"] = ((d,), FP32)
        for branch in ("attention", "feed_forward"):
            at = f"blocks.{i}.{branch}_hyper_connection."
            rows |= {at + name: row for name, row in connection_table(kind, d).items()}
    if kind in ("full_attnres", "block_attnres"):
        rows["res_proj.weight"], rows["res_norm.weight"] = ((1, d), FP32), ((d,), FP32)
    rows["lm_head.norm.weight"] = ((d,), BF16)
    rows["lm_head.w_out.weight"] = ((s.vocab_size, d), BF16)
    return rows


def connection_table(kind: str, d: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    if kind == "hc":
        alpha = {"static_alpha": (N, N + 1), "dynamic_alpha_proj": (d, N + 1), "dynamic_alpha_scale": ()}
        beta = {"static_beta": (N,), "dynamic_beta_proj": (d,), "dynamic_beta_scale": ()}
        return {name: (size, BF16) for name, size in {**alpha, **beta}.items()}
    if kind == "mhc_liger":
        scales: dict[str, tuple[int, ...]] = {"alpha_pre": (), "alpha_post": (), "alpha_res": ()}
        fp32 = {"b": (2 * N + N * N,), **scales}
        return {"phi": ((N * d, 2 * N + N * N), BF16), **{name: (size, FP32) for name, size in fp32.items()}}
    if kind == "mhc_torch":
        biases = {"pre_bias": (N,), "post_bias": (N,), "residual_bias": (N, N)}
        maps = {
            "pre_dynamic_proj": (N * d, N),
            "post_dynamic_proj": (N * d, N),
            "residual_dynamic_proj": (N * d, N * N),
        }
        gates: dict[str, tuple[int, ...]] = {"pre_gate": (), "post_gate": (), "residual_gate": ()}
        return {name: (size, BF16) for name, size in {**biases, **maps, **gates}.items()}
    return {}


def weights(kind: str, shape: db.Shape = SHAPE, seed: int = 0) -> dict[str, Tensor]:
    """Random weights of a published model, large enough that a wrong reading of any of them shows."""
    tensors = {}
    for name, (size, dtype) in table(kind, shape).items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
        tensors[name] = value(name, size, generator).to(dtype)
    return tensors


def value(name: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    normal, uniform = torch.randn(size, generator=generator), torch.rand(size, generator=generator)
    last = name.rsplit(".", 1)[-1]
    if name.endswith("norm.weight"):
        return 0.5 + uniform
    if last in ("static_beta",):
        return 1 + 0.3 * normal
    if last.endswith(("_scale", "_gate")) or last.startswith("alpha_"):
        return 0.3 + 0.4 * uniform
    if last in ("b", "pre_bias", "post_bias", "residual_bias"):
        return 0.7 * normal
    if last in ("static_alpha", "phi") or last.endswith("_proj"):  # the input axis is the first
        return normal / size[0] ** 0.5
    if name == "embeddings.weight":
        return 0.3 * normal
    return normal / size[-1] ** 0.5 * (3 if name.endswith("res_proj.weight") else 1)


def config(kind: str, shape: db.Shape = SHAPE, **block_settings: Any) -> dict[str, Any]:
    """An experiment's config.json as the reference's trainer saves it, in the parts that matter here."""
    norm = {
        "name": "rms",
        "eps": 1e-6,
        "bias": False,
        "dtype": "bfloat16",
        "_CLASS_": "olmo_core.nn.layer_norm.LayerNormConfig",
    }
    rope = {"name": "default", "theta": 10000, "full_precision": True, "_CLASS_": "olmo_core.nn.rope.RoPEConfig"}
    block: dict[str, Any] = {
        "sequence_mixer": {
            "name": "default",
            "n_heads": shape.n_heads,
            "n_kv_heads": shape.n_kv_heads,
            "head_dim": shape.head_dim,
            "bias": False,
            "rope": rope,
            "backend": "flash_2",
            "dtype": "bfloat16",
            "_CLASS_": "olmo_core.nn.attention.AttentionConfig",
        },
        "layer_norm": {**norm, **({"name": "default"} if kind == "deepnorm" else {})},
        "feed_forward": {
            "hidden_size": shape.d_ff,
            "name": "default",
            "bias": False,
            "dtype": "bfloat16",
            "activation": "silu",
            "_CLASS_": "olmo_core.nn.feed_forward.FeedForwardConfig",
        },
        "name": BLOCK_NAMES[kind],
        "moda_skip_ffn_kv": False,
        "_CLASS_": "olmo_core.nn.transformer.config.TransformerBlockConfig",
    }
    overrides = None
    if kind in ("hc", "mhc_liger", "mhc_torch"):
        block["hyper_connections"] = {
            "kind": {"hc": "hc", "mhc_liger": "liger_mhc", "mhc_torch": "mhc"}[kind],
            "num_residual_streams": N,
            "gating_factor_init": 0.01,
            "sinkhorn_iters": 20,
            "sinkhorn_tau": 1.0,
            "disable_static_weight_decay": True,
            "scale_output_init_by_sqrt_n": True,
            "liger_phi_dtype": "bfloat16",
            "liger_allow_fp32": False,
            "liger_rms_eps": 1e-6,
            "liger_pre_eps": 0.0,
            "liger_sinkhorn_eps": 1e-6,
            "liger_post_mult": 2.0,
            "collapse": "auto",
            "_CLASS_": "olmo_core.nn.transformer.config.HyperConnectionsConfig",
        }
    if kind in ("full_attnres", "block_attnres"):
        block["attnres_block_size"] = 1 if kind == "full_attnres" else 3
    if kind == "moda":
        block["moda"] = {"backend": "v17", "cache_post_norm_k": True, "extra_ffn_kv_proj": True, "depth_bs": 64}
        overrides = {str(shape.n_layers - 1): {**block, "moda_skip_ffn_kv": True}}
    return {
        "model": {
            "d_model": shape.d_model,
            "vocab_size": shape.vocab_size,
            "n_layers": shape.n_layers,
            "block": block | block_settings,
            "lm_head": {"name": "default", "layer_norm": norm, "bias": False, "dtype": "bfloat16"},
            "name": "default",
            "dtype": "bfloat16",
            "init_method": "normal",
            "init_seed": 0,
            "init_std": 0.02,
            "block_overrides": overrides,
            "_CLASS_": "olmo_core.nn.transformer.config.TransformerConfig",
        },
        "dataset": {
            "sequence_length": 2048,
            "tokenizer": {"identifier": "/home/someone/tokenizers/gpt-neox-olmo-dolma-v1_5.json", "vocab_size": 50280},
        },
        "data_loader": {"global_batch_size": 1048576, "seed": 42},
        "train_module": {
            "optim": {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
            "scheduler": {"warmup_fraction": 0.1, "alpha_f": 0.1},
            "max_grad_norm": 1.0,
        },
        "trainer": {"max_duration": {"value": 7600, "unit": "steps"}},
    }


def twice_registered(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with every branch under the name that it has inside its Hyper-Connection too."""
    doubled = dict(tensors)
    for name, tensor in tensors.items():
        parts = name.split(".")
        if parts[0] != "blocks" or "hyper_connection" in parts[2]:
            continue
        branch = parts[2].removesuffix("_norm")
        inner = "norm" if parts[2].endswith("_norm") else branch
        doubled[".".join([*parts[:2], f"{branch}_hyper_connection", "branch", inner, *parts[3:]])] = tensor
    return doubled


def holder(tensors: dict[str, Tensor]) -> nn.Module:
    """A module whose parameters have exactly these names; equal tensors are one parameter."""
    root, made = nn.Module(), {id(t): nn.Parameter(t.clone()) for t in tensors.values()}
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part]  # type: ignore[assignment]
        module.register_parameter(leaf, made[id(tensor)])
    return root


def write_with_olmo_core(folder: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> Path:
    """A step folder by OLMo-core's own functions, with an optimiser that has made a step."""
    module = holder(tensors)
    optim = torch.optim.AdamW(module.parameters(), lr=1e-30)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [parameter.clone() for parameter in module.parameters()]
    optim.step()
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    save_model_and_optim_state(folder / "model_and_optim", module, optim)
    return finish(folder, content)


def write_with_torch(folder: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> Path:
    """The same by torch's own writer, whose index holds other classes."""
    state = {"model": dict(tensors), "optim": {"exp_avg": torch.zeros(3), "note": "not read"}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder / "model_and_optim"))
    return finish(folder, content)


def finish(folder: Path, content: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(content))
    (folder / ".metadata.json").write_text(json.dumps({"version": "2.5.0"}))
    return folder
