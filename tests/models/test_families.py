"""Families of models, each a small random one: right, or refused before its weights are read.

Right means: in fp32 the logits of a sequence are those of transformers' own eager attention, past the length that the
model was stretched from, beside another sequence in a packed row, and token by token over kept keys and values.
docs/models.md has a line for each.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.models.llama import modeling_llama

from ludus.engines.local.kernels.base import PAGE_TOKENS, RaggedBatch, SequenceChunk
from ludus.engines.local.kernels.select import choose_kernel
from ludus.engines.local.paged import PagedCache, PagedPlan
from ludus.errors import UserError
from ludus.kernels.library import AttentionRule
from ludus.models import load
from ludus.models.load import LoadedModel, load_model
from ludus.models.probe import attend_by_definition, check_module
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
GROUPS: dict[str, Any] = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
GPT2: dict[str, Any] = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": STRETCHED}
QUANTISED: dict[str, Any] = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
FULL = "full_attention"
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
        {**WIDE, **EXPERTS, **GROUPS},
    ),
    "EXAONE 4": Family("exaone4", {**WIDE, **WINDOW}),
    "Seed-OSS": Family("seed_oss", WIDE),
    "Apertus": Family("apertus", WIDE),
    "StarCoder 2": Family("starcoder2"),
    "Hunyuan": Family("hunyuan_v1_dense", WIDE),
    "ERNIE 4.5": Family("ernie4_5", WIDE),
    "ERNIE 4.5 MoE": Family("ernie4_5_moe", {**WIDE, **EXPERTS, "moe_num_experts": 4, "moe_k": 2}),
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
    "OPT": Family("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "StarCoder, GPT-BigCode": Family("gpt_bigcode", GPT2, True),
    "Arcee (AFM)": Family("arcee"),
    "CWM": Family("cwm", {**WIDE, **WINDOW}),
    "dots.llm1": Family("dots1", {**WIDE, **EXPERTS, **GROUPS, "n_shared_experts": 1}),
    "FlexOlmo": Family("flex_olmo", EXPERTS),
    "GLM-4 (2024)": Family("glm", WIDE),
    "GLM-4.7-Flash": Family("glm4_moe_lite", LATENT),
    "Granite 3 MoE with shared experts": Family("granitemoeshared", {**LOCAL_EXPERTS, "shared_intermediate_size": 32}),
    "Granite 4 without Mamba layers": Family(
        "granitemoehybrid",
        {
            "layer_types": [FULL, FULL],
            "position_embedding_type": "rope",
            "num_local_experts": 0,
            "shared_intermediate_size": 32,
            "logits_scaling": 6.0,
            "mamba_n_heads": 4,
        },
    ),
    "Helium": Family("helium", WIDE),
    "nanochat": Family("nanochat", WIDE),
    "VaultGemma": Family("vaultgemma", GEMMA),
    "AFMoE (Trinity)": Family("afmoe", {**WIDE, **WINDOW, **EXPERTS, "num_dense_layers": 1}),
    "Ministral 3": Family(
        "ministral3", {**WIDE, **rope("yarn", factor=4.0, llama_4_scaling_beta=0.1), "sliding_window": None}
    ),
    "Qwen3.5, Qwen3-Next": Family(
        "qwen3_next",
        {**WIDE, **EXPERTS, "layer_types": ["linear_attention", "full_attention"]},
        refused="layer 0 of Qwen3NextForCausalLM is of type 'linear_attention'",
    ),
    "Granite 4 with Mamba layers": Family(
        "granitemoehybrid",
        {"layer_types": [FULL, "linear_attention"], "mamba_n_heads": 4},
        refused="layer 1 of .* is of type 'linear_attention'",
    ),
    "LFM2": Family("lfm2", {"layer_types": ["full_attention", "conv"]}, refused="layer 1 of .* is of type 'conv'"),
    "Mamba": Family("mamba", {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1}, True, STATE),
    "Falcon-H1": Family("falcon_h1", WIDE, refused=STATE),
    "Jamba": Family("jamba", refused="another state"),
    "Llama 4": Family("llama4_text", WIDE, refused="'chunked_attention'"),
    "Llama 4 without chunks": Family(
        "llama4_text",
        {**WIDE, "attention_chunk_size": None, "layer_types": [FULL, FULL], "floor_scale": 64},
        refused="their place in a row",
    ),
    "Qwen2.5-VL and other vision models without a text class": Family(
        "qwen2_5_vl", {"text_config": COMMON}, True, "no text decoder that transformers loads by itself"
    ),
    "Falcon, GPT-J, StableLM, BLOOM, MPT": Family("stablelm", refused="computes attention in code of its own"),
    "quantised weights": Family("llama", QUANTISED, refused=r"are quantised \(gptq\)"),
    "Phi-1, Phi-2": Family("phi", refused="the head of PhiForCausalLM adds a bias"),
    "Gemma 4 (text)": Family("gemma4_text", {**WIDE, "hidden_size_per_layer_input": 8}, refused="layers that all have"),
    "Nemotron": Family("nemotron", WIDE, refused="does not hand on|in code of its own"),  # the latter before 5.11
}
# What configurations may say of windows, beside what families usually do.
LONG: dict[str, Any] = {"sliding_window": 40}  # longer than any sequence that a model is proven on
WINDOWS = {
    "layers that differ": Family("qwen2", {**LONG, "use_sliding_window": True, "max_window_layers": 1}),
    "layers that differ by a list": Family(
        "qwen3", {**WIDE, **LONG, "use_sliding_window": True, "layer_types": [FULL, "sliding_attention"]}
    ),
    "a window that is not used": Family("qwen2", {"sliding_window": 4, "use_sliding_window": False}),
    "a window of no family that has one": Family("llama", {"sliding_window": 4}),
    "no window where there could be one": Family("mistral", {**WIDE, "sliding_window": None}),
    "a window as long as the context": Family("mistral", {**WIDE, "sliding_window": STRETCHED}),
    "a window of one token": Family("mistral", {**WIDE, "sliding_window": 1}),
    "a window of nothing": Family("mistral", {**WIDE, "sliding_window": 0}, refused="a sliding window of 0 tokens"),
    "a window below nothing": Family(
        "mistral", {**WIDE, "sliding_window": -1}, refused="a sliding window of -1 tokens"
    ),
    "a window in the mask alone": Family("phimoe", {**LOCAL_EXPERTS, **LONG}, refused="of all keys before a query"),
    "a window in the layer alone": Family("olmoe", {**EXPERTS, **LONG}, refused="of a window of 40 tokens"),
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
    model = check_right(FAMILIES[name], tmp_path)
    if "rope_parameters" in FAMILIES[name].values:
        assert model.config.original_length == ORIGINAL


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.refused is None])
def test_what_is_trained_is_right(name: str, tmp_path: Path) -> None:
    """Every weight has the gradient that it has by transformers' own eager attention, of two rows in one."""
    plain = build(FAMILIES[name], tmp_path)
    model = load_model(ModelSettings(path=str(tmp_path), dtype="float32", device="cpu"))
    rows = [torch.randint(3, 96, (count,)) for count in (min(TOKENS, model.config.context_length), 11)]
    for logits in ([plain(input_ids=row[None], use_cache=False).logits[0] for row in rows], packed(model, rows)):
        losses = [functional.cross_entropy(each[:-1], row[1:]) for each, row in zip(logits, rows, strict=True)]
        torch.stack(losses).sum().backward()
    expected = {each.replace("language_model.", ""): own.grad for each, own in plain.named_parameters()}
    for weight, parameter in model.module.named_parameters():
        grads = (parameter.grad, expected[weight])
        got, wanted = (torch.zeros_like(parameter) if each is None else each.to_dense() for each in grads)
        error = (got - wanted).norm()
        assert error <= max(1e-3 * wanted.norm(), TOLERANCE), f"{weight}: {error} of {wanted.norm()}"


@pytest.mark.parametrize("name", WINDOWS)
@torch.no_grad()
def test_windows_are_right_or_refused(name: str, tmp_path: Path) -> None:
    """However a configuration spells them; where a layer's mask is not the one that it tells its attention of, it is
    refused, also if the window is longer than what the model is proven on."""
    family = WINDOWS[name]
    if family.refused is None:
        check_right(family, tmp_path)
        return
    build(family, tmp_path)
    with pytest.raises(UserError, match=family.refused):
        load_model(ModelSettings(path=str(tmp_path), dtype="float32", device="cpu"))


def check_right(family: Family, folder: Path) -> LoadedModel:
    plain = build(family, folder)
    model = load_model(ModelSettings(path=str(folder), dtype="float32", device="cpu"))
    length = min(TOKENS, model.config.context_length)
    rows = [torch.randint(3, 96, (count,)) for count in (length, 11)]
    expected = [plain(input_ids=row[None], use_cache=False).logits[0] for row in rows]
    assert all(each.abs().max() > 0.05 for each in expected), "all the same would prove nothing"
    for got, own in zip(packed(model, rows), expected, strict=True):
        torch.testing.assert_close(got, own, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(step_by_step(model, rows[0]), expected[0], atol=TOLERANCE, rtol=0)
    return model


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


@pytest.mark.parametrize("where", ["beside the towers", "in the text's", "in the text's, older", "for another program"])
def test_quantised_weights_are_found_wherever_that_stands(where: str, tmp_path: Path) -> None:
    """A model of several modalities tells of it once, beside its towers or in the one that is loaded."""
    text = {**COMMON, **GEMMA, "model_type": "gemma3_text"}
    values: dict[str, Any] = {"text_config": text, "vision_config": VISION}
    if where == "beside the towers":
        values |= QUANTISED
    elif where == "for another program":
        values |= {"quantization": {"group_size": 64, "bits": 4}}
    else:
        older = {"compression_config": {"quant_method": "compressed-tensors"}}
        text |= QUANTISED if where == "in the text's" else older
    AutoConfig.for_model("gemma3", **values).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="are quantised"):
        load_model(ModelSettings(path=str(tmp_path), dtype="float32", device="cpu"))


def test_only_the_quantised_tower_that_is_not_loaded_does_no_harm(tmp_path: Path) -> None:
    """The text decoder's weights are plain."""
    family = FAMILIES["Gemma 3 (vision), its text decoder"]
    build(family, tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text())
    values["vision_config"] |= QUANTISED
    file.write_text(json.dumps(values))
    load_model(ModelSettings(path=str(tmp_path), dtype="float32", device="cpu"))


def test_quantised_weights_of_which_no_configuration_tells_are_refused(tmp_path: Path) -> None:
    """Before they are read where an index names their tensors, else by their type; they would be taken for plain."""
    model = build(FAMILIES["Llama 2, 3"], tmp_path)
    settings = ModelSettings(path=str(tmp_path), dtype="float32", device="cpu")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.layers.0.mlp.up_proj.weight_scale_inv": "model.safetensors"}}))
    with pytest.raises(UserError, match=r"are quantised \(there is a model\.layers.*\.up_proj\.weight_scale_inv\)"):
        load_model(settings)
    index.unlink()
    weights = {name: each.detach().clone() for name, each in model.state_dict().items()}
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"are quantised \(model\.norm\.weight is of type F8_E4M3\)"):
        load_model(settings)


@torch.no_grad()
def test_a_cap_far_above_the_logits_of_a_check_is_seen(tmp_path: Path) -> None:
    """Logits of a few tokens may lie where a cap of 30 changes next to nothing; other text would reach it."""
    build(Family("gemma2", {**GEMMA, "final_logit_softcapping": 30.0}), tmp_path)
    model = load_model(ModelSettings(path=str(tmp_path), dtype="float32", device="cpu"))
    assert model.config.logit_softcap == 30.0
    with pytest.raises(UserError, match="does more than multiply, scale and cap"):
        check_module(model.module, replace(model.config, logit_softcap=None), model.backbone)


def test_a_cap_far_above_the_scores_of_a_check_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that a family's own attention has and does not hand on."""
    build(FAMILIES["Llama 2, 3"], tmp_path)

    def capped(part: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float, **_: Any) -> Any:
        rule = AttentionRule(scaling, None, 50.0)
        return attend_by_definition(q, k, v, mask[0, 0] == 0, rule).transpose(1, 2), None

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", capped)
    with pytest.raises(UserError, match="attends otherwise than by softmax over scaled, capped and masked scores"):
        load_model(ModelSettings(path=str(tmp_path), dtype="float32", device="cpu"))


def test_the_page_has_a_line_for_each_family() -> None:
    """docs/models.md says of each family whether it is served, and of no other."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    lines = dict(re.findall(r"^\| (.+?) \| (right|refused)[^|]* \|", page, re.MULTILINE))
    expected = {name: "right" if family.refused is None else "refused" for name, family in FAMILIES.items()}
    assert lines == expected


def test_a_longer_context_than_frequencies_stay_for_is_refused(tmp_path: Path) -> None:
    """Beyond its original length longrope turns earlier tokens otherwise; up to it a narrower context may be named."""
    build(Family("phi3", LONGROPE), tmp_path)
    settings = ModelSettings(path=str(tmp_path), dtype="float32", device="cpu")
    assert load_model(settings).config.context_length == ORIGINAL
    assert load_model(settings.model_copy(update={"context_length": 20})).config.context_length == 20
    with pytest.raises(UserError, match=f"beyond {ORIGINAL} tokens .* other frequencies"):
        load_model(settings.model_copy(update={"context_length": ORIGINAL + 1}))
