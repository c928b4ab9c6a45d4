"""Hugging Face models: the same logits as `transformers` gives, from a model and from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import depthbench as db
from depthbench.checkpoints import CheckpointError, open_checkpoint
from depthbench.checkpoints.huggingface import from_transformers
from depthbench.probes.tap import branch_rms

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 31,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.5,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CASES = [
    ("Llama", {}),
    ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("Llama", {"rope_parameters": LLAMA3}),
    ("Mistral", {"sliding_window": None}),
    ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    ("Qwen3", {"head_dim": 6}),
]


def ids() -> torch.Tensor:
    return torch.randint(0, 31, (2, 40), generator=torch.Generator().manual_seed(0))


def made(name: str, **settings: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="the optional extra 'transformers' is not installed")
    config = getattr(transformers, f"{name}Config")(**SIZES | settings)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in parameter_name else 0.0, 0.3, generator=generator)
    return model


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_the_same_logits(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    theirs = made(name, **settings)
    ours = from_transformers(theirs)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    opened = open_checkpoint(tmp_path)
    with torch.no_grad():
        expected = theirs(ids()).logits
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(ids()), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(opened.model(ids()), expected, rtol=0, atol=1e-5)
        wide = open_checkpoint(tmp_path, dtype=torch.float64).model(ids())
        torch.testing.assert_close(wide, expected.double(), rtol=0, atol=3e-5)  # theirs is rounded to float32
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert (opened.source.kind, opened.spec.design, opened.spec.lr) == ("hugging-face", "pre_ln", None)
    assert sum(p.numel() for p in ours.parameters()) == ours.num_params


def test_probes_run_on_it() -> None:
    frame = branch_rms(from_transformers(made("Llama")), ids())
    assert len(frame) == 3 and (frame > 0).all().all()


def test_the_weights_are_a_copy() -> None:
    theirs = made("Llama")
    ours = from_transformers(theirs)
    before = ours(ids())
    with torch.no_grad():
        theirs.model.norm.weight.zero_()
    assert torch.equal(ours(ids()), before)


def llama_config(**changes: Any) -> dict[str, Any]:
    return {"model_type": "llama", "hidden_act": "silu", **SIZES, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "olmo2"}, "norms stand after the branches"),
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not opened: supported: llama"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "sliding window"),
        ({"head_dim": 8}, "head_dim is 8"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "type 'yarn'"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"hidden_size": 25}, "do not fit together"),
        ({"intermediate_size": None}, "do not fit together"),
    ],
)
def test_what_is_no_plain_llama_is_refused_in_words(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config(**changes)))
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=words):
        db.load_checkpoint(tmp_path)


def test_damaged_folders(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama_config()))
    (tmp_path / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(CheckpointError, match=r"pickled weights .* are not opened"):
        db.load_checkpoint(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match="cannot be read"):
        db.load_checkpoint(tmp_path)
    save_file({"model.embed_tokens.weight": torch.zeros(31, 24)}, weights)
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight, model\.layers\.0"):
        db.load_checkpoint(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(CheckpointError, match="a plain file name of the same folder"):
        db.load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be given"):
        db.load_checkpoint(tmp_path, mix_streams=False)
