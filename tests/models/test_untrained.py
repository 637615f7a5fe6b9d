"""Models with random weights: any shape, loaded as any model is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from ludus.errors import UserError
from ludus.models.config import ModelConfig
from ludus.models.load import load_model
from ludus.models.settings import ModelSettings
from ludus.models.untrained import make_untrained

SHAPES = Path(__file__).parents[2] / "bench" / "shapes"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_model(ModelSettings(path=str(folder), device="cpu")).module.state_dict()


def test_a_shape_becomes_a_model(tiny_model_folder: Path, tmp_path: Path) -> None:
    """The folder loads with Ludus and transformers, has the tokenizer of the other model, and depends on the seed."""
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        make_untrained(tiny_model_folder / "config.json", tmp_path / name, tokenizer=str(tiny_model_folder), seed=seed)
    one, same, other = (weights(tmp_path / name) for name in ("one", "same", "other"))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert plain.dtype == torch.bfloat16 and plain.generation_config.eos_token_id == 2
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / "one" / name).read_text() == (tiny_model_folder / name).read_text()


def test_what_cannot_be_made_is_told_before_anything_is_written(tiny_model_folder: Path, tmp_path: Path) -> None:
    """No such file, no such kind of model, a vocabulary that the tokenizer does not fit into, a folder in use."""
    config = json.loads((tiny_model_folder / "config.json").read_text())
    cases = {
        "no configuration": None,
        "no configuration that transformers knows": {"model_type": "nonsense"},
        "a vocabulary of 100": {**config, "vocab_size": 100},
    }
    for message, values in cases.items():
        file = tmp_path / "shape.json"
        if values is not None:
            file.write_text(json.dumps(values))
        with pytest.raises(UserError, match=message):
            make_untrained(file, tmp_path / "made", tokenizer=str(tiny_model_folder), seed=0)
    assert not (tmp_path / "made").exists()
    with pytest.raises(UserError, match="not empty"):
        make_untrained(tiny_model_folder / "config.json", tiny_model_folder, tokenizer=str(tiny_model_folder), seed=0)


@pytest.mark.parametrize(("name", "num_parameters"), [("qwen3-0.6b", 596_049_920), ("qwen3-4b", 4_022_468_096)])
def test_shapes_written_out_are_those_of_qwen3(name: str, num_parameters: int) -> None:
    """Ludus serves the shapes, and they have as many parameters as the released models."""
    config = transformers.AutoConfig.from_pretrained(SHAPES / f"{name}.json")
    assert ModelConfig.from_hf(config).architecture == "Qwen3ForCausalLM"
    assert config.rope_parameters["rope_theta"] == 1e6
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(each.numel() for each in module.parameters()) == num_parameters
