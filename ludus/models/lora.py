"""Adapters of peft's: what one adds is a part of its layer's sum, and is rounded with it, once.

Knows: peft's LoRA layers.  Knows not: what they are adapters of.
Invariant: with anything but one plain adapter on a linear layer, peft's own forward runs. That adds to a product which
has been rounded: in bf16 an adapter that has learned little yet has hardly half of its effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ludus.models.four_bit import FourBitLinear
from ludus.models.fused_autograd import LoraAdapter
from ludus.models.operations import Operations, torch_linear


def fuse_adapters(module: nn.Module, operations: Operations) -> None:
    """Replace the forward of every LoRA layer in `module`."""
    for part in module.modules():
        if type(part) is _layer_kind() and "forward" not in vars(part):
            cast(Any, part).forward = partial(_adapted, part, part.forward, operations)


def _layer_kind() -> type | None:
    """Of peft's linear layers with adapters. None: peft is not loaded, so there are none."""
    found = sys.modules.get("peft.tuners.lora.layer")
    return None if found is None else cast(type, found.Linear)


def plain_adapter(part: nn.Module) -> LoraAdapter | None:
    """The one adapter that `part` adds to its base layer. None: it has none, or peft would compute it otherwise."""
    if type(part) is not _layer_kind() or type(part.base_layer) not in (nn.Linear, FourBitLinear):
        return None
    layer: Any = part
    base = layer.base_layer
    dtype = base.dtype if isinstance(base, FourBitLinear) else base.weight.dtype
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return None
    (name,) = layer.active_adapters
    if name not in layer.lora_A or name in layer.lora_variant or type(layer.lora_dropout[name]) is not nn.Identity:
        return None
    down, up = layer.lora_A[name], layer.lora_B[name]
    if up.bias is not None or down.weight.dtype != dtype:
        return None
    return LoraAdapter(down.weight, up.weight, layer.scaling[name])


def _adapted(
    part: Any, own: Callable[..., Tensor], operations: Operations, x: Tensor, *rest: Any, **more: Any
) -> Tensor:
    adapter, base = None if rest or more else plain_adapter(part), part.base_layer
    if adapter is None:
        return own(x, *rest, **more)
    multiply = torch_linear if torch.is_grad_enabled() else operations.linear
    low = multiply(x, adapter.down) * adapter.scale
    if isinstance(base, FourBitLinear):
        return base.product(x, multiply(low, adapter.up))
    return multiply(x, base.weight, base.bias, multiply(low, adapter.up))
