from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from torch import nn

from ludus.models.lora import fuse_adapters, plain_adapter
from ludus.models.operations import Operations, choose_operations, torch_linear
from ludus.models.rowwise import TorchRowwise

_ADDED = 2.0**-11
"""Outputs lie around 1, where bf16 tells 2**-8 apart."""
pytestmark = pytest.mark.filterwarnings("ignore:.*config attribute:UserWarning")  # peft asks for a transformers model


def adapted(**settings: Any) -> Any:
    """A linear layer with an adapter of random values."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5))
    peft.get_peft_model(module, peft.LoraConfig(r=2, lora_alpha=6, target_modules=["0"], **settings))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def test_a_plain_adapter_gives_pefts_values_and_gradients() -> None:
    """Output, gradient of the input and of both factors are peft's own, on batches of several dimensions; without
    gradients too."""
    x, grad = torch.randn(2, 3, 6), torch.randn(2, 3, 5)
    results = []
    for is_fused in (False, True):
        module = adapted()
        if is_fused:
            fuse_adapters(module, choose_operations(module[0].weight))
            assert plain_adapter(module[0]) is not None
        own = x.clone().requires_grad_()
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        assert len(trained) == 2
        output = module(own)
        with torch.no_grad():
            sampled = module(x)
        results.append((output.detach(), sampled, *torch.autograd.grad(output, (own, *trained), grad)))
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain)


def test_anything_but_one_plain_adapter_is_left_to_peft() -> None:
    """Dropout, biases, DoRA, disabled and merged adapters are peft's business."""
    assert plain_adapter(nn.Linear(2, 2)) is None
    for settings in ({"lora_dropout": 0.5}, {"lora_bias": True}, {"use_dora": True}):
        assert plain_adapter(adapted(**settings)[0]) is None
    for change in ("merge", "enable_adapters"):
        module = adapted()
        fuse_adapters(module, choose_operations(module[0].weight))
        layer = module[0]
        layer.merge() if change == "merge" else layer.enable_adapters(False)
        assert plain_adapter(layer) is None
        x = torch.randn(3, 6)
        torch.testing.assert_close(module(x), layer.base_layer(x))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("by_torch", [False, True])
@pytest.mark.parametrize("num_rows", [1, 40])
def test_what_an_adapter_has_learned_is_not_rounded_away(num_rows: int, by_torch: bool, has_bias: bool) -> None:
    """An addition of an eighth of what bf16 can tell apart arrives on the average, sampling and training alike.

    Added to a product that has been rounded to the nearest, as peft does it, hardly half of it arrives.
    """
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 4096, bias=has_bias))
    peft.get_peft_model(module, peft.LoraConfig(r=16, lora_alpha=16, target_modules=["0"]))
    module.bfloat16()
    x, layer = torch.randn(num_rows, 64).bfloat16(), module[0]
    with torch.no_grad():
        layer.base_layer.weight.normal_(std=0.2)
        layer.lora_A["default"].weight.copy_(x[0] / x[0].float().square().sum())  # 1 in each rank for the first row
    plain = operations(torch_linear) if by_torch else choose_operations(layer.base_layer.weight)
    fuse_adapters(module, plain)

    def moved(forward: Any, is_sampled: bool) -> float:
        """By how much the outputs of the first row grow, of what the adapter adds to each."""
        means = []
        for up in (0.0, _ADDED / 16):
            with torch.no_grad():
                layer.lora_B["default"].weight.fill_(up)
            with torch.set_grad_enabled(not is_sampled):
                means.append(forward(x)[0].double().mean().item())
        return (means[1] - means[0]) / _ADDED

    assert moved(module, is_sampled=True) == pytest.approx(1, abs=0.1)
    assert moved(module, is_sampled=False) == pytest.approx(1, abs=0.1)
    assert moved(type(layer).forward.__get__(layer), is_sampled=True) < 0.7


def operations(linear: Any) -> Operations:
    return Operations(TorchRowwise(), linear)
