from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from peft import PeftModel
from torch.nn import functional

from ludus.errors import UserError
from ludus.models.load import LoadedModel, copy_companions, load_model, save_model
from ludus.models.resolve import adapter_base
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.models.tree import TreePlan

FAMILIES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gpt_oss")
PROMPT = tuple(range(20, 50))


def load_tiny(folder: Path, **settings: object) -> LoadedModel:
    return load_model(ModelSettings(path=str(folder), dtype="float32", **settings))


def our_logits(model: LoadedModel, ids: tuple[int, ...]) -> torch.Tensor:
    positions = tuple(range(len(ids)))
    plan = TreePlan(tuple(index - 1 for index in positions), positions)
    with torch.no_grad():
        hidden = model.backbone(torch.tensor([ids]), torch.tensor([positions]), plan)
        logits = functional.linear(hidden, model.head_weight)[0]
    cap = model.config.logit_softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


def plain_logits(module: torch.nn.Module, ids: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = module(torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_our_attention_gives_the_logits_of_plain_transformers(family: str, tiny_models: Callable[[str], Path]) -> None:
    """A plan handed through transformers' modules gives what their own eager attention gives, windows and caps too."""
    folder = tiny_models(family)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    torch.testing.assert_close(our_logits(load_tiny(folder), PROMPT), plain_logits(plain, PROMPT), atol=2e-5, rtol=1e-5)


def test_full_save_loads_with_plain_transformers(tiny_model_folder: Path, tmp_path: Path) -> None:
    """What was changed and saved is read by AutoModelForCausalLM and AutoTokenizer, template and eos included."""
    model = load_tiny(tiny_model_folder)
    with torch.no_grad():
        for parameter in model.trainable.values():
            parameter.add_(0.01)
    save_model(model, tmp_path / "saved", chat_template="{{ messages[0].content }}")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(plain_logits(plain, PROMPT), our_logits(model, PROMPT), atol=2e-5, rtol=1e-5)
    assert plain.generation_config.eos_token_id == 2
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Guess."}], tokenize=False) == "Guess."


def test_a_template_is_saved_as_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever texts of the user are; those of many families have signs beyond ASCII."""
    write = Path.write_text

    def write_ascii(path: Path, text: str, encoding: str = "ascii") -> int:
        return write(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", write_ascii)
    copy_companions(tmp_path, tmp_path, chat_template="<｜User｜>")
    assert (tmp_path / "chat_template.jinja").read_text(encoding="utf-8") == "<｜User｜>"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers the old way
def test_lora_trains_adapters_alone_and_saves_for_peft(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Only adapters are trainable, fresh ones change nothing, changed ones load with PeftModel and with us."""
    base = our_logits(load_tiny(tiny_model_folder), PROMPT)
    model = load_tiny(tiny_model_folder, lora=LoraSettings(rank=4, alpha=8))
    assert model.trainable and all("lora_" in name for name in model.trainable)
    torch.testing.assert_close(our_logits(model, PROMPT), base)
    with torch.no_grad():
        for parameter in model.trainable.values():
            parameter.add_(0.05)
    changed = our_logits(model, PROMPT)
    assert (changed - base).abs().max() > 0.01
    save_model(model, tmp_path / "adapter")
    assert adapter_base(tmp_path / "adapter") == str(tiny_model_folder)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny_model_folder)
    with_adapter = PeftModel.from_pretrained(plain, tmp_path / "adapter")
    torch.testing.assert_close(plain_logits(with_adapter, PROMPT), changed, atol=2e-5, rtol=1e-5)
    again = load_tiny(tmp_path / "adapter")
    assert set(again.trainable) == set(model.trainable)
    torch.testing.assert_close(our_logits(again, PROMPT), changed)


def test_saved_names_are_those_in_the_files(tiny_model_folder: Path, tmp_path: Path) -> None:
    """`saved_shapes` gives the names that the saved adapter's file holds."""
    from safetensors import safe_open

    model = load_tiny(tiny_model_folder, lora=LoraSettings(rank=2, alpha=2, target_modules=("q_proj",)))
    save_model(model, tmp_path)
    with safe_open(tmp_path / "adapter_model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(model.saved_shapes)


def test_lora_on_unknown_modules_or_embeddings_is_refused(tiny_model_folder: Path) -> None:
    """A target that is no linear layer of the model, or an embedding, gives an error that names the setting."""
    for target in ("nonsense", "embed_tokens"):
        with pytest.raises(UserError, match="target_modules"):
            load_tiny(tiny_model_folder, lora=LoraSettings(target_modules=(target,)))


def test_model_with_another_state_is_refused_by_layer(tmp_path: Path, tiny_model_folder: Path) -> None:
    """A layer that is not softmax attention is named when the model is refused."""
    config = transformers.FalconMambaConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4, intermediate_size=32
    )
    config.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text((tiny_model_folder / "tokenizer.json").read_text())
    with pytest.raises(UserError, match="keep another state than keys and values"):
        load_tiny(tmp_path)
    config = transformers.Lfm2Config(num_hidden_layers=2, layer_types=["full_attention", "conv"])
    config.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"layer 1 of .* 'conv'"):
        load_tiny(tmp_path)


def test_context_can_be_narrowed_but_not_widened(tiny_model_folder: Path) -> None:
    """model.context_length narrows the context, and more than the model was made for is refused."""
    assert load_tiny(tiny_model_folder, context_length=100).config.context_length == 100
    with pytest.raises(UserError, match="at most 512"):
        load_tiny(tiny_model_folder, context_length=1000)


def test_padding_token_learns(tiny_model_folder: Path) -> None:
    """The end-of-turn token, which serves as padding, gets a gradient as an input like any other."""
    model = load_tiny(tiny_model_folder)
    model.embedding(torch.tensor([2])).sum().backward()
    assert model.embedding.weight.grad is not None and model.embedding.weight.grad[2].abs().sum() > 0


def test_a_save_replaces_the_weights_of_an_earlier_one(tiny_model_folder: Path, tmp_path: Path) -> None:
    """Files of several ranks go when one writes the whole, and a model may be saved where it was loaded from."""
    model = load_tiny(tiny_model_folder)
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).write_text("old")
    save_model(model, tmp_path)
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]
    again = load_tiny(tmp_path)
    with torch.no_grad():
        again.head_weight.add_(1.0)
    save_model(again, tmp_path)
    torch.testing.assert_close(load_tiny(tmp_path).head_weight, model.head_weight + 1.0)
