"""Native checkpoints: files in the published layout compute what the published equations say, for every design."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import depthbench as db
from depthbench.checkpoints import CheckpointError, open_checkpoint

from .equations import published_logits
from .native_writer import KINDS, SHAPE, config, twice_registered, weights, write_with_olmo_core, write_with_torch

# Weights are opened in float64, so that a right reading is off by rounding of 1e-12 and a wrong one shows.
TOLERANCE = 1e-9
DESIGN_OF = {"mhc_liger": "mhc", "mhc_torch": "mhc"}
OPTIONS: dict[str, dict[str, Any]] = {
    "mhc_liger": {"sinkhorn": "reference", "exit_reduce": "mean"},
    "mhc_torch": {"norm_eps": 1e-8},
    "full_attnres": {"norm_eps": 1e-5},
    "block_attnres": {"block_size_sublayers": 3, "norm_eps": 1e-5},
    "moda": {"rotate_depth_keys": False},
}


def tokens() -> Tensor:
    return torch.randint(0, SHAPE.vocab_size, (2, 7), generator=torch.Generator().manual_seed(0))


def wide(step: Path, **how: Any) -> Any:
    return db.load_checkpoint(step, dtype=torch.float64, **how)[0]


def difference(model: Any, expected: Tensor) -> float:
    with torch.no_grad():
        return float((model(tokens()).double() - expected).abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [write_with_olmo_core, write_with_torch])
def test_every_design_computes_its_published_equations(kind: str, write: Any, tmp_path: Path) -> None:
    tensors = weights(kind)
    expected = published_logits(kind, tensors, SHAPE, tokens())
    assert expected.std() > 0.1
    step = write(tmp_path / "step7600", tensors, config(kind))
    assert difference(wide(step), expected) < TOLERANCE
    model, spec = db.load_checkpoint(step)
    assert difference(model, expected) < 1e-5 * max(1, float(expected.abs().max())), "float32 is off by rounding only"
    assert not model.training and {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert (spec.design, spec.shape, spec.options) == (DESIGN_OF.get(kind, kind), SHAPE, OPTIONS.get(kind, {}))


def test_what_the_config_tells_of_the_run_and_nothing_more(tmp_path: Path) -> None:
    step = write_with_torch(tmp_path / "step7600", weights("pre_ln"), config("pre_ln"))
    model, spec, source = open_checkpoint(step, dtype=torch.bfloat16)
    assert (spec.lr, spec.betas, spec.weight_decay, spec.seed, spec.data_seed) == (2e-3, (0.9, 0.95), 0.1, 0, 42)
    assert (spec.n_tokens, spec.n_steps, spec.precision) == (7600 * 1048576, 7600, "bf16-pure")
    assert spec.data is None, "the file does not say which data set, so nothing is claimed"
    assert (source.kind, source.step, source.tokenizer) == ("olmo-core", 7600, "gpt-neox-olmo-dolma-v1_5.json")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_eps_and_theta_are_the_config_s(tmp_path: Path) -> None:
    content = config("pre_ln")
    content["model"]["block"]["layer_norm"] = {"name": "rms", "eps": 1e-3, "bias": False}
    content["model"]["lm_head"]["layer_norm"] = {"name": "fused_rms", "bias": False}
    content["model"]["block"]["sequence_mixer"]["rope"]["theta"] = 500_000
    step = write_with_torch(tmp_path, weights("pre_ln"), content)
    model, _ = db.load_checkpoint(step, dtype=torch.float16)
    for block in model.blocks.values():
        assert (block.attention_norm.eps, block.feed_forward_norm.eps, block.attention.rope.theta) == (1e-3, 1e-3, 5e5)
    assert model.lm_head.norm.eps == 1e-5, "OLMo-core's default, where the file is silent"
    assert model(tokens()).dtype == torch.float16
    wide, narrow = (db.load_checkpoint(step, dtype=dtype)[0](tokens()) for dtype in (torch.float64, torch.float32))
    torch.testing.assert_close(wide, narrow.double(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["hc", "mhc_liger"])
@pytest.mark.parametrize("only_inner", [False, True])
def test_branches_registered_twice(kind: str, only_inner: bool, tmp_path: Path) -> None:
    tensors = weights(kind)
    expected = published_logits(kind, tensors, SHAPE, tokens())
    doubled = twice_registered(tensors)
    assert len(doubled) == len(tensors) + 27
    if only_inner:
        inner = {id(t) for name, t in doubled.items() if ".branch." in name}
        doubled = {n: t for n, t in doubled.items() if ".branch." in n or id(t) not in inner}
    model = wide(write_with_olmo_core(tmp_path / "step0", doubled, config(kind)))
    assert difference(model, expected) < TOLERANCE


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("full_attnres", {"name": "default"}),
        ("block_attnres", {"name": "default"}),
        ("block_attnres", {"name": "attn_res"}),
        ("hc", {"name": "default"}),
        ("mhc_liger", {"name": "default"}),
        ("mhc_torch", {"name": "default"}),
        ("pre_ln", {"moda_skip_ffn_kv": True}),
    ],
    ids=str,
)
def test_old_spellings(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    tensors = weights(kind)
    content = config(kind, **settings)
    content["model"]["block"]["attention"] = content["model"]["block"].pop("sequence_mixer")
    model = wide(write_with_torch(tmp_path / "step0", tensors, content))
    assert difference(model, published_logits(kind, tensors, SHAPE, tokens())) < TOLERANCE


def test_variants_of_a_design(tmp_path: Path) -> None:
    tensors = weights("lns")
    step = write_with_torch(tmp_path / "a", tensors, config("lns", name="default_depth_scaled"))
    expected = published_logits("lns", tensors, SHAPE, tokens(), depth_scaled=True)
    assert difference(wide(step), expected) < TOLERANCE
    tensors = weights("hc")
    step = write_with_torch(tmp_path / "b", tensors, config("hc"))
    model, spec = db.load_checkpoint(
        step, dtype=torch.float64, mix_streams=False
    )  # early runs, which no config tells apart
    assert difference(model, published_logits("hc", tensors, SHAPE, tokens(), mix_streams=False)) < TOLERANCE
    assert spec.options == {"mix_streams": False}
    for name, design in (("depth_mup", "depth_mup"), ("completep", "complete_p")):
        tensors = weights("pre_ln")
        content = config("pre_ln", name=name, residual_scaling_base_depth=12)
        model = wide(write_with_torch(tmp_path / name, tensors, content))
        assert difference(model, published_logits(design, tensors, SHAPE, tokens(), base_layers=12)) < TOLERANCE


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mhc_torch", {"sinkhorn": "reference"}),
        ("mhc_torch", {"norm_eps": 1e-6}),
        ("mhc_torch", {"exit_reduce": "mean"}),
        ("mhc_liger", {"sinkhorn": "paper"}),
        ("mhc_liger", {"norm_eps": 1e-8}),
        ("hc", {"mix_streams": False}),
        ("hc", {"norm_eps": 1e-6}),
        ("full_attnres", {"norm_eps": 1e-6}),
        ("block_attnres", {"block_size_sublayers": 2}),
        ("moda", {"rotate_depth_keys": True}),
        ("deepnorm", {"norm": "rms"}),
    ],
    ids=str,
)
def test_a_wrong_reading_shows(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The tolerance tells the right reading from its neighbours: each of these is a plausible mistake."""
    tensors = weights(kind)
    step = write_with_torch(tmp_path, tensors, config(kind))
    expected = published_logits(kind, tensors, SHAPE, tokens())
    assert difference(wide(step), expected) < TOLERANCE
    assert difference(wide(step, **options), expected) > 10 * TOLERANCE


def test_the_last_step_or_the_one_asked_for(tmp_path: Path) -> None:
    for number in (0, 3000, 10000):
        write_with_torch(tmp_path / f"step{number}", weights("pre_ln", seed=number), config("pre_ln"))
    assert open_checkpoint(tmp_path).source.step == 10000, "the last by number, not by name"
    opened = open_checkpoint(tmp_path, step=3000)
    assert opened.source.step == 3000
    assert torch.equal(opened.model.embeddings.weight, weights("pre_ln", seed=3000)["embeddings.weight"].float())
    with pytest.raises(CheckpointError, match="has no step 5; its steps: 0, 3000, 10000"):
        db.load_checkpoint(tmp_path, step=5)
    with pytest.raises(CheckpointError, match="has no revision"):
        db.load_checkpoint(tmp_path, revision="main")


def test_a_run_of_ours_that_is_not_complete_is_not_opened(tmp_path: Path) -> None:
    write_with_torch(tmp_path / "step3", weights("pre_ln"), config("pre_ln"))
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(CheckpointError, match="not complete"):
        db.load_checkpoint(tmp_path)


def test_old_scale_buffers_are_checked(tmp_path: Path) -> None:
    tensors = weights("lns")
    buffers = {f"blocks.{i}.ln_scale": torch.tensor((i + 1) ** -0.5).bfloat16() for i in range(3)}
    step = write_with_torch(tmp_path / "a", tensors | buffers, config("lns"))
    assert difference(wide(step), published_logits("lns", tensors, SHAPE, tokens())) < TOLERANCE
    buffers["blocks.1.ln_scale"] = torch.tensor(4e-35)
    step = write_with_torch(tmp_path / "b", tensors | buffers, config("lns"))
    with pytest.raises(CheckpointError, match=r"blocks.1.ln_scale is 4e-35 where LNS has 1 / sqrt\(l\) = 0.707"):
        db.load_checkpoint(step)


def edit(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *parents, last = path.split(".")
    section = content
    for key in parents:
        section = section[key]
    section[last] = value
    return content


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        ("pre_ln", "model.block.name", "reordered_norm", "norms that stand after the branch"),
        ("moda", "model.block.name", "post_norm_moda", "Pre-LN form only"),
        ("pre_ln", "model.block.name", "normalized", "known are default"),
        ("pre_ln", "model.block.sequence_mixer.qk_norm", {"name": "rms"}, "qk_norm is .* does not know"),
        ("pre_ln", "model.block.sequence_mixer.bias", True, "bias is True"),
        ("pre_ln", "model.block.sequence_mixer.head_dim", 12, "head_dim is 12"),
        ("pre_ln", "model.block.sequence_mixer.rope.scaling", {"factor": 8}, "rope.scaling is"),
        ("pre_ln", "model.block.feed_forward.activation", "gelu_tanh", "activation is 'gelu_tanh'"),
        ("pre_ln", "model.block.layer_norm.name", "default", "layer_norm.name is 'default'"),
        ("pre_ln", "model.block.attention_residual_alpha", 0.5, "attention_residual_alpha is 0.5"),
        ("pre_ln", "model.block_overrides", {"1": {"name": "keel"}}, "all blocks must be alike"),
        ("pre_ln", "model.embedding_norm", {"name": "rms"}, "embedding_norm"),
        ("pre_ln", "model.d_model", 25, "do not fit together"),
        ("pre_ln", "model.block.layer_norm", None, "no section model.block.layer_norm"),
        ("full_attnres", "model.block.attnres_topk_fraction", 0.25, "attnres_topk_fraction is 0.25"),
        ("full_attnres", "model.block.attnres_learn_logit_scale", True, "attnres_learn_logit_scale is True"),
        ("mhc_torch", "model.block.hyper_connections.kind", "mhc_static", "do not depend on the token"),
        ("mhc_torch", "model.block.hyper_connections.tanh", True, "tanh is True"),
        ("mhc_liger", "model.block.hyper_connections.liger_pre_eps", 1e-3, "liger_pre_eps"),
        ("hc", "model.block.hyper_connections.tanh", False, "tanh is False"),
        ("hc", "model.block.hyper_connections.collapse", "mean", "collapse is 'mean'"),
        ("moda", "model.block.moda.attention_scale", 1.0, "attention_scale"),
    ],
)
def test_what_cannot_be_expressed_is_refused_in_words(
    kind: str, path: str, value: Any, words: str, tmp_path: Path
) -> None:
    content = edit(config(kind), path, value)
    if path.startswith("model.block.") and content["model"]["block_overrides"] and not path.endswith("overrides"):
        content["model"]["block_overrides"] = None
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=words):
        db.load_checkpoint(tmp_path)


def test_options_that_the_design_lacks(tmp_path: Path) -> None:
    step = write_with_torch(tmp_path / "a", weights("pre_ln"), config("pre_ln"))
    with pytest.raises(CheckpointError, match="has no option mix_streams"):
        db.load_checkpoint(step, mix_streams=False)
    with pytest.raises(CheckpointError, match=r"dtype=torch\.int8 is not one of"):
        db.load_checkpoint(step, dtype=torch.int8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t.pop("blocks.2.attention.w_q.weight"),
            r"lacks model\.blocks\.2\.attention\.w_q\.weight, which pre_ln needs",
        ),
        (
            lambda t: t.update({"blocks.0.extra": torch.zeros(2)}),
            r"holds model\.blocks\.0\.extra, for which pre_ln has no use",
        ),
        (lambda t: t.update({"lm_head.norm.weight": torch.ones(23)}), r"lm_head.norm.weight has shape \(23,\)"),
        (lambda t: t["lm_head.norm.weight"].fill_(torch.nan), "no finite numbers"),
    ],
)
def test_tensors_that_do_not_fit(change: Any, words: str, tmp_path: Path) -> None:
    tensors = weights("pre_ln")
    change(tensors)
    with pytest.raises(CheckpointError, match=words):
        db.load_checkpoint(write_with_torch(tmp_path / "step0", tensors, config("pre_ln")))
