"""Adapters of peft's under autograd: one fused addition each, instead of a product, a scaling and a sum.

Knows: peft's LoRA layers.  Knows not: what they are adapters of.
Invariant: with gradients off, or with anything but one plain adapter, peft's own forward runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from peft.tuners.lora.layer import Linear as LoraLinear
from torch import Tensor, nn

from ludus.models.fused_autograd import LoraAdapter, add_adapter


def fuse_adapters(module: nn.Module) -> None:
    """Replace the forward of every LoRA layer in `module`."""
    for part in module.modules():
        if type(part) is LoraLinear and "forward" not in vars(part):
            cast(Any, part).forward = partial(_adapted, part, part.forward)


def plain_adapter(part: nn.Module) -> LoraAdapter | None:
    """The one adapter that `part` adds to its base layer. None: it has none, or peft would compute it otherwise."""
    if type(part) is not LoraLinear:
        return None
    layer: Any = part
    if layer.disable_adapters or layer.merged or len(layer.active_adapters) != 1:
        return None
    (name,) = layer.active_adapters
    if name not in layer.lora_A or name in layer.lora_variant or type(layer.lora_dropout[name]) is not nn.Identity:
        return None
    down, up = layer.lora_A[name], layer.lora_B[name]
    if up.bias is not None or down.weight.dtype != layer.base_layer.weight.dtype:
        return None
    return LoraAdapter(down.weight, up.weight, layer.scaling[name])


def _adapted(part: Any, own: Callable[..., Tensor], x: Tensor, *rest: Any, **more: Any) -> Tensor:
    adapter = plain_adapter(part) if torch.is_grad_enabled() and not rest and not more else None
    return own(x, *rest, **more) if adapter is None else add_adapter(part.base_layer(x), x, adapter)
