from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from torch import nn

from ludus.models.lora import fuse_adapters, plain_adapter

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
    """Output, gradient of the input and of both factors are peft's own, on batches of several dimensions."""
    x, grad = torch.randn(2, 3, 6), torch.randn(2, 3, 5)
    results = []
    for is_fused in (False, True):
        module = adapted()
        if is_fused:
            fuse_adapters(module)
            assert plain_adapter(module[0]) is not None
        own = x.clone().requires_grad_()
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        assert len(trained) == 2
        output = module(own)
        results.append((output.detach(), *torch.autograd.grad(output, (own, *trained), grad)))
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain)


def test_anything_but_one_plain_adapter_is_left_to_peft() -> None:
    """Dropout, biases, DoRA, disabled and merged adapters are peft's business."""
    assert plain_adapter(nn.Linear(2, 2)) is None
    for settings in ({"lora_dropout": 0.5}, {"lora_bias": True}, {"use_dora": True}):
        assert plain_adapter(adapted(**settings)[0]) is None
    for change in ("merge", "enable_adapters"):
        module = adapted()
        fuse_adapters(module)
        layer = module[0]
        layer.merge() if change == "merge" else layer.enable_adapters(False)
        assert plain_adapter(layer) is None
        x = torch.randn(3, 6)
        torch.testing.assert_close(module(x), layer.base_layer(x))
