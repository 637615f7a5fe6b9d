"""Mixtures of experts in files: what others load, tensor by tensor, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ludus.engines.serving.files import FileWeights
from ludus.models.load import LoadedModel, load_model, read_trainable, save_model
from ludus.models.settings import ModelSettings
from ludus.trainer.export import export_model
from tests.models.test_families import FAMILIES, build

ROW = torch.arange(3, 40)[None]
# Where the hub has a tensor for each expert, and where it has one for all.
SEPARATE = (
    *("Qwen2-MoE", "Qwen3-MoE", "Mixtral", "OLMoE", "Phi-3.5-MoE", "MiniMax-M2"),
    *("DeepSeek V2", "DeepSeek V3, R1", "GLM-4.5", "ERNIE 4.5 MoE"),
)
STACKED = ("gpt-oss", "Granite 3 MoE")
DENSE = ("Llama 2, 3", "GPT-2", "Phi-3 4k, Phi-4")


def loaded(folder: Path) -> LoadedModel:
    return load_model(ModelSettings(path=str(folder), dtype="float32", device="cpu"))


def logits(folder: Path) -> Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(input_ids=ROW).logits


@pytest.mark.parametrize("name", [*SEPARATE, *STACKED, *DENSE])
def test_what_is_exported_is_what_transformers_saves(name: str, tmp_path: Path) -> None:
    """The same names, shapes and values, in any number of files, those of routers that no training moves too; plain
    transformers has the same logits."""
    build(FAMILIES[name], tmp_path / "base")
    model = loaded(tmp_path / "base")
    save_model(model, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert any(".experts.0." in each for each in saved) == (name in SEPARATE)
    export_model(model, model.saved(model.trainable.items()), tmp_path / "cut", max_file_bytes=40_000)
    files = sorted((tmp_path / "cut").glob("*.safetensors"))
    exported = {each: tensor for file in files for each, tensor in load_file(file).items()}
    assert len(files) > 1 and exported.keys() == saved.keys()
    assert all(torch.equal(exported[each], saved[each]) for each in saved)
    assert torch.equal(logits(tmp_path / "cut"), logits(tmp_path / "base"))


@pytest.mark.parametrize("name", [*SEPARATE, *STACKED, *DENSE])
def test_what_was_saved_is_read_back(name: str, tmp_path: Path) -> None:
    """All of every weight, or a rank's rows of it."""
    build(FAMILIES[name], tmp_path)
    model = loaded(tmp_path)
    found = read_trainable(model, tmp_path)
    assert all(torch.equal(found[each], parameter) for each, parameter in model.trainable.items())
    found = read_trainable(model, tmp_path, lambda each: (slice(len(each) // 2, len(each)),))
    assert all(torch.equal(found[each], own[len(own) // 2 :]) for each, own in model.trainable.items())


def test_experts_that_were_saved_in_one_tensor_are_separate_again(tmp_path: Path) -> None:
    """So a model that was written so is one that others load, once it is saved or published."""
    plain = build(FAMILIES["Qwen3-MoE"], tmp_path)
    assert any(name.endswith(".experts.gate_up_proj") for name in plain.state_dict())
    save_file({name: each.contiguous() for name, each in plain.state_dict().items()}, tmp_path / "model.safetensors")
    model = loaded(tmp_path)
    assert any(".experts.0." in name for name in model.saved_shapes)
    save_model(model, tmp_path / "saved")
    assert load_file(tmp_path / "saved" / "model.safetensors").keys() == model.saved_shapes.keys()


def test_a_served_model_takes_experts_one_by_one(tmp_path: Path) -> None:
    """What is not in the files stays as it is."""
    build(FAMILIES["Qwen3-MoE"], tmp_path)
    model = loaded(tmp_path)
    before = {name: each.clone() for name, each in model.saved(model.trainable.items())}
    chosen = "model.layers.1.mlp.experts.2.up_proj.weight"
    save_file({chosen: before[chosen] + 1}, tmp_path / "moved.safetensors")
    FileWeights(model, [tmp_path / "moved.safetensors"]).copy_into_shared()
    after = dict(model.saved(model.trainable.items()))
    assert torch.equal(after[chosen], before[chosen] + 1)
    assert all(torch.equal(after[name], each) for name, each in before.items() if name != chosen)
