"""What the sums say is what the code allocates, counted storage by storage.

Attention is a stand-in that keeps what a card's kernel keeps (queries, keys, values, output, a sum of each head) and
computes nothing: torch's operations on a processor would hold all scores. All else is the trainer's own code with the
operations that it has on a card.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ludus.algorithms import share
from ludus.algorithms.pack import TrainSequence, pack
from ludus.algorithms.settings import AlgorithmSettings
from ludus.api.cards import memory
from ludus.api.cards.memory import Job, RowCost, Training, host_bytes, kept_bytes, training_parts
from ludus.api.cards.shape import ModelShape
from ludus.engines.lease import ComputeLease
from ludus.engines.local.kernels.base import PAGE_TOKENS
from ludus.engines.local.paged import PagedCache
from ludus.models import tree
from ludus.models.attention import ATTENTION_NAME, register_attention
from ludus.models.config import ModelConfig
from ludus.models.four_bit import FourBitLinear, quantize_layers
from ludus.models.fused_layers import fuse_layers
from ludus.models.load import LoadedModel, _add_lora, decoder_layers
from ludus.models.settings import LoraSettings
from ludus.trainer import head
from ludus.trainer.metric_means import TokenMeans
from ludus.trainer.settings import OptimizerSettings, TrainerSettings
from ludus.trainer.step import ModelTrainer
from tests.api.cards.live import LiveBytes
from tests.api.cards.shapes import ALL_MODULES

SHAPE = {
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}


class CardAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        output, sums = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, output, sums)
        return output.zero_().transpose(1, 2)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, *_ = ctx.saved_tensors
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


@pytest.fixture
def on_a_card(monkeypatch):
    """Attention and the head's chunks as on a card."""
    monkeypatch.setattr(tree.TreePlan, "attend", lambda plan, layer_idx, q, k, v, rule: CardAttention.apply(q, k, v))
    monkeypatch.setattr(head, "LOGIT_BYTES", head.CARD_LOGIT_BYTES)


def trainer_of(family, *, lora=False, is_quantized=False, **settings):
    config = AutoConfig.for_model(family, **SHAPE)
    register_attention()
    module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=ATTENTION_NAME).eval()
    adapter = _add_lora(module, LoraSettings(), 0) if lora else None
    if is_quantized:
        quantize_layers(decoder_layers(module, ModelConfig.from_hf(config)), torch.device("cpu"))
    fuse_layers(module, device=torch.device("meta"))  # with torch's operations, as on a card
    trainable = {name: each for name, each in module.named_parameters() if each.requires_grad}
    model = LoadedModel(Path("none"), module, ModelConfig.from_hf(config), trainable, adapter)
    return ModelTrainer(model, TrainerSettings(**settings), AlgorithmSettings(), lease=ComputeLease())


def job_of(family, *, lora=False):
    shape = ModelShape.of({**SHAPE, "model_type": family})
    return Job(shape, 2, (16, ALL_MODULES) if lora else None, False, False, False, 256, 2048)


def peak_of_a_row(trainer, num_tokens):
    ids = [1 + i % 1000 for i in range(num_tokens)]
    (row,) = pack([TrainSequence.plain(ids, range(1, num_tokens))], row_tokens=num_tokens)
    with LiveBytes() as live:
        trainer._backward.add([row], TokenMeans(), trainer._algorithm)
    return live.peak


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2"])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("has_checkpointing", [False, True])
def test_a_row_takes_what_its_sum_says(on_a_card, family, lora, has_checkpointing):
    """Never more, and not much less: forward pass, head and backward pass of one row, the block mask left out."""
    num_tokens, job = 1024, job_of(family, lora=lora)
    trainer = trainer_of(family, lora=lora, activation_checkpointing=has_checkpointing)
    measured = peak_of_a_row(trainer, num_tokens)
    how = Training(has_checkpointing=has_checkpointing)
    shape, layer = job.shape, kept_bytes(job)
    counted = num_tokens * shape.num_layers * (2 * shape.width if has_checkpointing else layer)
    passing = num_tokens * (2 * (7 * shape.inner + 8 * shape.width) + (layer if has_checkpointing else 0))
    logits = memory.LOGIT_COPIES * 2 * num_tokens * shape.vocab_size
    logits += 0 if lora else 2 * shape.vocab_size * shape.width
    assert measured <= counted + max(passing, logits) <= 1.35 * measured
    # which is the sum, but for the mask of pairs, and where the step that follows does not take more
    whole = counted + max(passing, logits) + memory.MASK_BYTES * (num_tokens // 128) ** 2
    assert RowCost.of(job, how)(num_tokens) == max(whole, memory.step_bytes(job, how))


def test_each_layer_keeps_what_its_sum_says(on_a_card, monkeypatch):
    """Between forward and backward pass, to the byte."""
    peaks = []
    for num_layers in (2, 4):
        monkeypatch.setitem(SHAPE, "num_hidden_layers", num_layers)
        peaks.append(peak_of_a_row(trainer_of("qwen3"), 2048))
    assert (peaks[1] - peaks[0]) / 2 / 2048 == pytest.approx(kept_bytes(job_of("qwen3")), rel=1e-3)


@pytest.mark.parametrize("moments", ["fp32", "bf16"])
@pytest.mark.parametrize("lora", [False, True])
def test_what_lies_there_all_the_time_is_what_is_made(lora, moments):
    """Weights, masters, gradients and moments after a step, to the byte but for counters of steps."""
    trainer = trainer_of("llama", lora=lora, optimizer=OptimizerSettings(moments=moments))
    for name in trainer.model.trainable:
        trainer.optimizer.add_gradient(name, torch.zeros_like(trainer.model.trainable[name]))
    trainer.optimizer.step()
    state = trainer.optimizer.state()
    kept = sum(each.nbytes for own in state["moments"].values() for name, each in own.items() if name != "step")
    parts = training_parts(job_of("llama", lora=lora), Training(moments=moments))
    in_host = training_parts(job_of("llama", lora=lora), Training(moments=moments, in_host=True))
    assert in_host == {name: parts[name] for name in ("weights", "gradients, fp32")}
    assert host_bytes(job_of("llama", lora=lora), Training(moments=moments, in_host=True), in_turns=False) == (
        parts["masters, fp32"] + kept
    )
    assert parts == {
        "weights": sum(each.nbytes for each in trainer.model.module.parameters()),
        "masters, fp32": sum(each.nbytes for each in state["masters"].values()),
        "gradients, fp32": sum(trainer.gradient(name).nbytes for name in state["masters"]),
        f"moments, {moments}": kept,
    }


def test_pages_are_the_engines():
    """Bytes and tokens of a page, and how far rows are filled up."""
    config = ModelConfig.from_hf(AutoConfig.for_model("qwen3", **SHAPE))
    assert memory.PAGE_TOKENS == PAGE_TOKENS
    assert memory.ROW_BLOCK == share.TOKEN_BLOCK
    assert job_of("qwen3").page_bytes == PagedCache.page_bytes(config, torch.bfloat16)
    assert memory.LOGIT_BYTES == head.CARD_LOGIT_BYTES


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_weights_in_four_bits_are_the_layers(on_a_card):
    """Those of linear layers, with their scales, beside embeddings, norms and adapters; a row takes no more than its
    sum with a weight in full beside it."""
    work = replace(job_of("llama", lora=True), is_quantized=True)
    trainer = trainer_of("llama", lora=True, is_quantized=True)
    layers = [each for each in trainer.model.module.modules() if isinstance(each, FourBitLinear)]
    weights = sum(each.nbytes for each in (*layers, *trainer.model.module.parameters()))
    # besides scales every layer has two tables of its numbers
    assert work.all_weight_bytes == pytest.approx(weights - len(layers) * (16 + 256 + 1) * 4, rel=1e-3)
    assert peak_of_a_row(trainer, 1024) <= RowCost.of(work, Training())(1024)
