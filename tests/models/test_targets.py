"""Adapters by family: every linear layer but routers; names that fit nothing and experts left out are told."""

from __future__ import annotations

import logging
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ludus.errors import UserError
from ludus.models.load import load_model, save_model
from ludus.models.settings import LoraSettings, ModelSettings
from tests.models.test_families import FAMILIES, build, packed

# peft asks transformers the old way
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
ROW = torch.arange(3, 40)
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


def settings(folder: Path, **lora: object) -> ModelSettings:
    return ModelSettings(path=str(folder), dtype="float32", device="cpu", lora=LoraSettings(rank=2, **lora))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Llama 2, 3", {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ("Phi-3 4k, Phi-4", {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
        ("GPT-2", {"c_attn", "c_proj", "c_fc"}),
        ("Qwen2-MoE", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("DeepSeek V3, R1", {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}),
    ],
)
@torch.no_grad()
def test_a_family_gets_adapters_on_its_own_layers(name: str, expected: set[str], tmp_path: Path) -> None:
    """In every layer, by the family's own names; what is saved gives the same in plain peft."""
    build(FAMILIES[name], tmp_path / "base")
    model = load_model(settings(tmp_path / "base"))
    assert {each.split(".lora_")[0].rpartition(".")[2] for each in model.trainable} == expected
    for parameter in model.trainable.values():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    save_model(model, tmp_path / "adapter")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base", attn_implementation="eager", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    (got,) = packed(model, [ROW])
    torch.testing.assert_close(got, theirs(input_ids=ROW[None], use_cache=False).logits[0], atol=1e-4, rtol=0)


def test_fused_experts_learn_and_are_saved_as_peft_reads_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Left out they are named in a warning; named they have gradients, and plain peft gives the same with them."""
    build(FAMILIES["Qwen3-MoE"], tmp_path / "base")
    with caplog.at_level(logging.WARNING):
        load_model(settings(tmp_path / "base"))
    assert "target_parameters=[mlp.experts.down_proj, mlp.experts.gate_up_proj]" in caplog.text
    model = load_model(settings(tmp_path / "base", target_parameters=EXPERTS))
    assert sum(".experts." in name for name in model.trainable) == 2 * len(EXPERTS) * model.config.num_layers
    with torch.no_grad():
        for parameter in model.trainable.values():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    (got,) = packed(model, [ROW])
    got.logsumexp(-1).sum().backward()
    assert all(each.grad is not None and each.grad.any() for each in model.trainable.values())
    save_model(model, tmp_path / "adapter")
    assert set(model.saved_shapes) == set(load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base", attn_implementation="eager", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    expected = theirs(input_ids=ROW[None], use_cache=False).logits[0]
    torch.testing.assert_close(got.detach(), expected.detach(), atol=1e-4, rtol=0)
    again = load_model(ModelSettings(path=str(tmp_path / "adapter"), dtype="float32", device="cpu"))
    torch.testing.assert_close(packed(again, [ROW])[0], got)


def test_a_name_that_fits_nothing_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Beside names that fit it is a warning with the nearest one; alone it is an error with those that there are."""
    build(FAMILIES["Phi-3 4k, Phi-4"], tmp_path)
    with caplog.at_level(logging.WARNING):
        model = load_model(settings(tmp_path, target_modules=("o_proj", "kv_proj")))
    assert "'kv_proj' fits no layer of Phi3ForCausalLM and adapts nothing; did you mean 'qkv_proj'?" in caplog.text
    assert all(".o_proj." in name for name in model.trainable)
    with pytest.raises(UserError, match=r"'q_proj' fits no layer of Phi3ForCausalLM; its linear layers are .*qkv_proj"):
        load_model(settings(tmp_path, target_modules=("q_proj",)))


def test_an_adapter_of_a_text_decoder_inside_another_model_is_refused(tmp_path: Path) -> None:
    """Its layers have other names than those that plain peft would look for."""
    build(FAMILIES["Gemma 3 (vision), its text decoder"], tmp_path)
    with pytest.raises(UserError, match="text decoder alone"):
        load_model(settings(tmp_path))


def test_a_text_decoder_is_saved_as_a_model_of_text(tmp_path: Path) -> None:
    """Plain transformers loads it by itself, with the weights that it had in the whole model."""
    build(FAMILIES["Gemma 3 (vision), its text decoder"], tmp_path / "whole")
    model = load_model(ModelSettings(path=str(tmp_path / "whole"), dtype="float32", device="cpu"))
    save_model(model, tmp_path / "text")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "text", attn_implementation="eager", dtype=torch.float32)
    assert type(plain).__name__ == "Gemma3ForCausalLM"
    with torch.no_grad():
        expected = plain(input_ids=ROW[None], use_cache=False).logits[0]
        torch.testing.assert_close(packed(model, [ROW])[0], expected, atol=1e-4, rtol=0)
