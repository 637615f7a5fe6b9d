"""Weights in 4 bits under adapters: sampled and trained with the same numbers, and never published."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from ludus.algorithms.pack import Batch, pack
from ludus.api.local import LocalModel, open_local
from ludus.config import Config, load_config
from ludus.engines.lease import ComputeLease
from ludus.errors import ConfigError, UserError
from ludus.models.four_bit import BLOCK, FourBitLinear
from ludus.models.load import load_model, quiet
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.trainer.step import ModelTrainer
from ludus.types import Call, Sampling
from tests.trainer.test_step import branching_sequences

CPU = torch.device("cpu")
# Of the sixteen numbers of NF4 (arXiv 2305.14314, appendix E) the two furthest apart are -1 and -0.6962; scales of 8
# bits are off by a few percent.
LARGEST_GAP, SCALE_ERROR = 1 - 0.6961928009986877, 0.03
quantized = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


def linear(dtype: torch.dtype = torch.float32) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(128, 96, dtype=dtype)


@quantized
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_near_and_a_quarter_as_large(dtype: torch.dtype) -> None:
    """Each is within half of the widest gap of its block's scale, and the product is that of these numbers."""
    layer = linear(dtype)
    made = FourBitLinear(layer, CPU)
    assert made.weight.dtype == dtype and made.weight.shape == layer.weight.shape
    blocks, exact = made.weight.float().view(-1, BLOCK), layer.weight.detach().float().view(-1, BLOCK)
    allowed = (LARGEST_GAP / 2 + SCALE_ERROR) * exact.abs().amax(1, keepdim=True)
    assert bool(((blocks - exact).abs() <= allowed).all())
    assert made.packed.nbytes == layer.weight.numel() // 2
    x, added = torch.randn(3, 2, 128, dtype=dtype), torch.randn(3, 2, 96, dtype=dtype)
    expected = nn.functional.linear(x, made.weight, layer.bias)
    torch.testing.assert_close(made(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(made.product(x, added.clone()), expected + added, rtol=2e-2, atol=2e-2)


@quantized
def test_a_gradient_goes_through_and_nothing_is_kept() -> None:
    """To the input and to what an adapter adds; the numbers of the product are made again for it."""
    made = FourBitLinear(linear(), CPU)
    x, added = torch.randn(5, 128, requires_grad=True), torch.randn(5, 96, requires_grad=True)
    grad, kept = torch.randn(5, 96), []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        output = made.product(x, added)
    found = torch.autograd.grad(output, (x, added), grad)
    torch.testing.assert_close(found[0], grad @ made.weight)
    assert torch.equal(found[1], grad) and kept == []


def config_of(model: Path, *settings: str) -> Config:
    chosen = ("model.dtype=float32", "model.lora.rank=4", "model.quantization=nf4", "engine.kv_bytes=16777216")
    return load_config(None, [f"model.path={model}", *chosen, "trainer.optimizer.lr=0.01", *settings])


async def sampled(local: LocalModel, name: str) -> tuple[list[int], list[float]]:
    prompt = tuple(range(5, 25))
    answer = await local.engine.generate(Call(name, "s", prompt, Sampling(max_new_tokens=12, seed=3, ignore_eos=True)))
    return [*prompt, *answer.token_ids], list(answer.logprobs)


@quantized
def test_sampled_and_trained_alike(tiny_model_folder: Path, tmp_path: Path) -> None:
    """What the engine draws is what the trainer scores, before and after a step; adapters move and are published,
    the rest is as it was, and plain peft loads what is saved."""
    config = config_of(tiny_model_folder)

    async def scenario() -> None:
        async with open_local(config) as local:
            trainer = local.trainer(config)
            layers = [each for each in local.model.module.modules() if isinstance(each, FourBitLinear)]
            assert len(layers) == 7 * local.model.config.num_layers
            before = [each.packed.clone() for each in layers]
            masters = {name: each.clone() for name, each in trainer.optimizer.masters.items()}
            assert all("lora_" in name for name in masters)
            for version in (0, 1):
                ids, logprobs = await sampled(local, f"version {version}")
                (scored,) = trainer.score([ids])
                assert scored[-len(logprobs) :] == pytest.approx(logprobs, abs=1e-4)
                trainer.train_batch(Batch.of(pack(branching_sequences(), row_tokens=64), version=version))
                published = dict(trainer.publish().named_tensors())
                assert published.keys() == local.model.saved_shapes.keys()
                assert all("lora_" in name for name in published)
                await local.engine.publish(version + 1, trainer.publish())
            assert all(torch.equal(each.packed, was) for each, was in zip(layers, before, strict=True))
            assert any(not torch.equal(each, masters[name]) for name, each in trainer.optimizer.masters.items())
            local.save(trainer, tmp_path / "saved")

    asyncio.run(scenario())
    with quiet():
        base = AutoModelForCausalLM.from_pretrained(tiny_model_folder)
        assert peft.PeftModel.from_pretrained(base, str(tmp_path / "saved")).peft_config["default"].r == 4


def gradients(folder: Path, **settings: Any) -> dict[str, Tensor]:
    lora = LoraSettings(rank=4)
    chosen = ModelSettings(path=str(folder), dtype="float32", lora=lora, quantization="nf4")
    config = config_of(folder)
    trainer = ModelTrainer(load_model(chosen), config.trainer.model_copy(update=settings), lease=ComputeLease())
    with torch.no_grad():
        for number, parameter in enumerate(trainer.model.trainable.values()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.1)
    trainer.forward_backward(Batch.of(pack(branching_sequences(), row_tokens=64), version=0))
    return {name: each.clone() for name, each in trainer.optimizer.gradients().items()}


@quantized
def test_gradients_are_those_of_the_same_numbers_in_full(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose plain layers hold what the 4 bits stand for has the same gradients; with layers that are computed
    again as well."""
    found = gradients(tiny_model_folder)
    again = gradients(tiny_model_folder, activation_checkpointing=True)

    def in_full(layer: nn.Linear, device: torch.device) -> nn.Linear:
        made = FourBitLinear(layer, device)
        plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        plain.weight = nn.Parameter(made.weight, requires_grad=False)
        plain.bias = layer.bias
        plain.nbytes = made.nbytes  # type: ignore[assignment]
        return plain

    monkeypatch.setattr("ludus.models.four_bit.FourBitLinear", in_full)
    expected = gradients(tiny_model_folder)
    assert found.keys() == expected.keys() == again.keys() and any(bool(each.any()) for each in found.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(again[name], found[name], rtol=1e-4, atol=1e-6)


def test_what_cannot_be_is_refused(tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in 4 bits that were to be trained, or shared out over ranks; and nobody who makes them."""
    with pytest.raises(UserError, match=r"cannot be trained: set model\.lora"):
        load_model(ModelSettings(path=str(tiny_model_folder), quantization="nf4"))
    with pytest.raises(ConfigError, match=r"trainer\.ranks=2: set trainer\.ranks=1"):
        config_of(tiny_model_folder, "trainer.ranks=2")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"needs bitsandbytes: pip install 'ludus\[quantization\]'"):
        load_model(ModelSettings(path=str(tiny_model_folder), lora=LoraSettings(rank=2), quantization="nf4"))
