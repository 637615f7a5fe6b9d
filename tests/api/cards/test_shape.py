"""Shapes are what transformers makes of the same configuration, counted weight by weight."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from ludus.api.cards.shape import ModelShape
from ludus.errors import UserError
from tests.api.cards.shapes import CONFIGS

# As their authors publish them.
PUBLISHED = {
    "0.6b": 596_049_920,
    "1.7b": 1_720_574_976,
    "4b": 4_022_468_096,
    "8b": 8_190_735_360,
    "14b": 14_768_307_200,
    "32b": 32_762_123_264,
    "70b": 70_553_706_496,
}
FAMILIES = {
    "llama": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "mistral": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 48},
    "gemma": {"head_dim": 32},
    "gemma2": {"head_dim": 32},
    "gemma3_text": {"head_dim": 32, "sliding_window": 8},
}
SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name):
    """To the last weight."""
    assert ModelShape.of(CONFIGS[name]).num_weights == PUBLISHED[name]


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_counted_as_transformers_makes_them(family):
    """With and without biases, with norms of queries and keys or around each part, tied or not."""
    config = AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family]})
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    values = {**SMALL, **FAMILIES[family], "model_type": family}
    shape = ModelShape.of(values)
    assert shape.num_weights == sum(each.numel() for each in module.parameters())
    assert shape.layer_weights == sum(each.numel() for each in module.base_model.layers[0].parameters())
    assert shape.head_dim == module.base_model.layers[0].self_attn.head_dim


def test_weights_that_are_there_are_counted(tmp_path):
    """Whatever a configuration does not say, the files do; a folder without weights is counted by the formula."""
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama"}))
    counted = ModelShape.read(tmp_path).num_weights
    save_file({"a": torch.zeros(7, 11), "b": torch.zeros(3)}, tmp_path / "model-1.safetensors", {"about": "it"})
    save_file({"c": torch.zeros(5)}, tmp_path / "model-2.safetensors")
    assert ModelShape.read(tmp_path).num_weights == 85 != counted


def test_a_model_that_is_broken_is_named(tmp_path):
    """Its configuration, or a file of weights whose header would be longer than the file."""
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot be read"):
        ModelShape.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "llama"}))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    with pytest.raises(UserError, match=r"model.safetensors is no file of safetensors"):
        ModelShape.read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_experts": 8}, "mixture of experts"),
        ({"kv_lora_rank": 256}, "latent attention"),
        ({"num_hidden_layers": None}, "config.json"),
        ({"intermediate_size": None}, "config.json"),
    ],
)
def test_a_model_that_cannot_be_planned_is_named(changes, says):
    """And why."""
    with pytest.raises(UserError, match=says):
        ModelShape.of({**SMALL, "architectures": ["Odd"], **changes})
