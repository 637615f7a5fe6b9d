"""Families of models, each a small random one: right, or refused before its weights are read.

Right means: in fp32 the logits of a sequence are those of transformers' own eager attention, past the length that the
model was stretched from, beside another sequence in a packed row, and token by token over kept keys and values.
docs/models.md has a line for each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from ludus.engines.local.kernels.base import PAGE_TOKENS, RaggedBatch, SequenceChunk
from ludus.engines.local.kernels.select import choose_kernel
from ludus.engines.local.paged import PagedCache, PagedPlan
from ludus.errors import UserError
from ludus.models import load
from ludus.models.load import LoadedModel, load_model
from ludus.models.settings import ModelSettings
from ludus.models.tree import TreePlan

TOLERANCE = 1e-4
ORIGINAL, STRETCHED = 32, 128
TOKENS = 48  # past ORIGINAL
COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": STRETCHED,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WIDE: dict[str, Any] = {"head_dim": 16}
WINDOW: dict[str, Any] = {"sliding_window": 16}
GEMMA: dict[str, Any] = {**WIDE, **WINDOW, "query_pre_attn_scalar": 16}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2: dict[str, Any] = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": STRETCHED}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def rope(kind: str, **more: Any) -> dict[str, Any]:
    stretched = {"rope_theta": 1e4, "rope_type": kind, "original_max_position_embeddings": ORIGINAL, **more}
    return {"rope_parameters": stretched}


@dataclass(frozen=True)
class Family:
    """One line of docs/models.md."""

    kind: str
    """transformers' `model_type`."""
    values: dict[str, Any] = field(default_factory=dict)
    is_bare: bool = False
    """`values` are all there are."""
    refused: str | None = None
    """A pattern of the message that refuses it before the weights are read. None: it is right."""
    context: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        return self.values if self.is_bare else {**COMMON, **self.values}


LONGROPE = {
    **rope("longrope", short_factor=[1.0 + 0.01 * i for i in range(8)], long_factor=[2.0 + i for i in range(8)]),
    "original_max_position_embeddings": ORIGINAL,
}
STATE = "keep another state than keys and values"
FAMILIES = {
    "Llama 2, 3": Family("llama"),
    "Llama 3.1 and later, stretched": Family(
        "llama", rope("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0)
    ),
    "Llama with YaRN": Family("llama", rope("yarn", factor=4.0)),
    "Qwen2, Qwen2.5": Family("qwen2"),
    "Qwen3": Family("qwen3", WIDE),
    "Mistral, Ministral": Family("mistral", {**WIDE, **WINDOW}),
    "SmolLM3": Family("smollm3"),
    "OLMo": Family("olmo"),
    "OLMo 2": Family("olmo2"),
    "OLMo 3": Family("olmo3", WINDOW),
    "Gemma": Family("gemma", WIDE),
    "Gemma 2": Family("gemma2", GEMMA),
    "Gemma 3 (text)": Family("gemma3_text", GEMMA),
    "Gemma 3 (vision), its text decoder": Family(
        "gemma3", {"text_config": {**COMMON, **GEMMA, "model_type": "gemma3_text"}, "vision_config": VISION}, True
    ),
    "Mistral 3 (vision), its text decoder": Family(
        "mistral3",
        {
            "text_config": {**COMMON, **WIDE, "model_type": "mistral"},
            "vision_config": {**VISION, "model_type": "pixtral"},
        },
        True,
    ),
    "Phi-3 4k, Phi-4": Family("phi3"),
    "Phi-3 128k, Phi-4-mini, up to their original length": Family("phi3", LONGROPE),
    "Phi-3.5-MoE": Family("phimoe", {**LOCAL_EXPERTS}),
    "Granite 3": Family(
        "granite",
        {
            "logits_scaling": 6.0,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.0156,
        },
    ),
    "Granite 3 MoE": Family("granitemoe", {**LOCAL_EXPERTS, "logits_scaling": 6.0}),
    "Cohere (Command R)": Family("cohere", {"logit_scale": 0.0625}),
    "Cohere 2 (Command A, Aya)": Family("cohere2", {**WIDE, **WINDOW, "logit_scale": 0.25}),
    "GLM-4": Family("glm4", WIDE),
    "GLM-4.5": Family(
        "glm4_moe",
        {**WIDE, **EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    ),
    "EXAONE 4": Family("exaone4", {**WIDE, **WINDOW}),
    "Seed-OSS": Family("seed_oss", WIDE),
    "Apertus": Family("apertus", WIDE),
    "StarCoder 2": Family("starcoder2"),
    "Hunyuan": Family("hunyuan_v1_dense", WIDE),
    "ERNIE 4.5": Family("ernie4_5", WIDE),
    "MiniMax-M2": Family("minimax_m2", {**WIDE, **LOCAL_EXPERTS}),
    "Qwen2-MoE": Family("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 32}),
    "Qwen3-MoE": Family("qwen3_moe", {**WIDE, **EXPERTS}),
    "Mixtral": Family("mixtral", LOCAL_EXPERTS),
    "OLMoE": Family("olmoe", EXPERTS),
    "gpt-oss": Family("gpt_oss", {**WIDE, **WINDOW, **LOCAL_EXPERTS, **rope("yarn", factor=4.0)}),
    "DeepSeek V2": Family("deepseek_v2", LATENT),
    "DeepSeek V3, R1": Family("deepseek_v3", LATENT),
    "GPT-NeoX, Pythia": Family("gpt_neox", {"num_key_value_heads": 4}),
    "GPT-2": Family("gpt2", GPT2, True),
    "Qwen3.5, Qwen3-Next": Family(
        "qwen3_next",
        {**WIDE, **EXPERTS, "layer_types": ["linear_attention", "full_attention"]},
        refused="layer 0 of Qwen3NextForCausalLM is of type 'linear_attention'",
    ),
    "LFM2": Family("lfm2", {"layer_types": ["full_attention", "conv"]}, refused="layer 1 of .* is of type 'conv'"),
    "Mamba": Family("mamba", {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1}, True, STATE),
    "Falcon-H1": Family("falcon_h1", WIDE, refused=STATE),
    "Jamba": Family("jamba", refused="another state"),
    "Llama 4": Family("llama4_text", WIDE, refused="'chunked_attention'"),
    "Qwen2.5-VL and other vision models without a text class": Family(
        "qwen2_5_vl", {"text_config": COMMON}, True, "no text decoder that transformers loads by itself"
    ),
    "Falcon, GPT-J, StableLM, BLOOM, MPT": Family("stablelm", refused="computes attention in code of its own"),
    "quantised weights": Family(
        "llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, refused=r"are quantised \(gptq\)"
    ),
}
REFUSED_ONCE_RUN = {
    "Phi-1, Phi-2": (Family("phi"), "the head of PhiForCausalLM adds a bias"),
    "Nemotron": (Family("nemotron", WIDE), "does not hand on|in code of its own"),  # transformers before 5.11
    "Gemma 4 (text)": (Family("gemma4_text", {**WIDE, "hidden_size_per_layer_input": 8}), "layers that all have"),
}


def build(family: Family, folder: Path) -> PreTrainedModel:
    """A random model of the family, saved, as plain transformers runs it."""
    config = AutoConfig.for_model(family.kind, **family.config)
    torch.manual_seed(0)
    kind = AutoModelForImageTextToText if "vision_config" in family.config else AutoModelForCausalLM
    model: PreTrainedModel = kind.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and sinks that change something, and attention that chooses
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model


def logits_of(model: LoadedModel, hidden: Tensor) -> Tensor:
    logits = functional.linear(hidden, model.head_weight)
    cap = model.config.logit_softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


def packed(model: LoadedModel, rows: list[Tensor]) -> list[Tensor]:
    """Logits of each sequence, all of them in one row as in training."""
    parents: list[int] = []
    for row in rows:
        parents += [-1, *range(len(parents), len(parents) + len(row) - 1)]
    positions = [place for row in rows for place in range(len(row))]
    hidden = model.backbone(torch.cat(rows)[None], torch.tensor([positions]), TreePlan(parents, positions))
    return list(torch.split(logits_of(model, hidden[0]), [len(row) for row in rows]))


def step_by_step(model: LoadedModel, row: Tensor) -> Tensor:
    """Logits of a sequence over pages as in sampling: half of it, then token by token."""
    pages = tuple(range(-(-len(row) // PAGE_TOKENS)))
    cache = PagedCache(model.config, len(pages), dtype=torch.float32, device=torch.device("cpu"))
    kernel = choose_kernel("auto", model.head_weight, head_dim=model.config.head_dim)
    logits, at = [], 0
    for num_tokens in (len(row) // 2, *[1] * (len(row) - len(row) // 2)):
        batch = RaggedBatch([SequenceChunk(at, num_tokens, pages)])
        ids, positions = row[None, at : at + num_tokens], torch.arange(at, at + num_tokens)[None]
        logits.append(logits_of(model, model.backbone(ids, positions, PagedPlan(cache, kernel, batch))[0]))
        at += num_tokens
    return torch.cat(logits)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.refused is None])
@torch.no_grad()
def test_what_is_served_is_right(name: str, tmp_path: Path) -> None:
    """Packed and step by step it has the logits of transformers' eager attention, to 1e-4, past its first length."""
    plain = build(FAMILIES[name], tmp_path)
    model = load_model(ModelSettings(path=str(tmp_path), dtype="float32", device="cpu"))
    length = min(TOKENS, model.config.context_length)
    if "rope_parameters" in FAMILIES[name].values:
        assert model.config.original_length == ORIGINAL
    rows = [torch.randint(3, 96, (count,)) for count in (length, 11)]
    expected = [plain(input_ids=row[None], use_cache=False).logits[0] for row in rows]
    assert all(each.abs().max() > 0.05 for each in expected), "all the same would prove nothing"
    for got, own in zip(packed(model, rows), expected, strict=True):
        torch.testing.assert_close(got, own, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(step_by_step(model, rows[0]), expected[0], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.refused is not None])
def test_what_is_not_served_is_refused_before_its_weights_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration is enough; the message names the layer, or what stands against it."""
    family = FAMILIES[name]
    AutoConfig.for_model(family.kind, **family.config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("")
    monkeypatch.setattr(load, "_load_module", lambda *_: pytest.fail("the weights were read"))
    with pytest.raises(UserError, match=family.refused or ""):
        load_model(ModelSettings(path=str(tmp_path), dtype="float32", device="cpu"))


@pytest.mark.parametrize("name", REFUSED_ONCE_RUN)
def test_what_its_configuration_does_not_tell_is_refused_once_it_ran(name: str, tmp_path: Path) -> None:
    """A head with a bias, layers that hand nothing on, keys of several shapes."""
    family, message = REFUSED_ONCE_RUN[name]
    build(family, tmp_path)
    with pytest.raises(UserError, match=message):
        load_model(ModelSettings(path=str(tmp_path), dtype="float32", device="cpu"))


def test_the_page_has_a_line_for_each_family() -> None:
    """docs/models.md says of each family whether it is served, and of no other."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    lines = dict(re.findall(r"^\| (.+?) \| (right|refused)[^|]* \|", page, re.MULTILINE))
    expected = {name: "right" if family.refused is None else "refused" for name, family in FAMILIES.items()}
    assert lines == {**expected, **dict.fromkeys(REFUSED_ONCE_RUN, "refused")}


def test_a_longer_context_than_frequencies_stay_for_is_refused(tmp_path: Path) -> None:
    """Beyond its original length longrope turns earlier tokens otherwise; up to it a narrower context may be named."""
    build(Family("phi3", LONGROPE), tmp_path)
    settings = ModelSettings(path=str(tmp_path), dtype="float32", device="cpu")
    assert load_model(settings).config.context_length == ORIGINAL
    assert load_model(settings.model_copy(update={"context_length": 20})).config.context_length == 20
    with pytest.raises(UserError, match=f"beyond {ORIGINAL} tokens .* other frequencies"):
        load_model(settings.model_copy(update={"context_length": ORIGINAL + 1}))
