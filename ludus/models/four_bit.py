"""Linear layers whose weights are kept in 4 bits and are not trained: what adapters are added to (QLoRA).

Knows: bitsandbytes' functions, the layers of a decoder.  Knows not: adapters, optimizers.
Invariants: sampling and training multiply with the same numbers in the model's type, which are made from the 4 bits for
each product; none of them is kept for the backward pass, which makes them again.

Source: Dettmers et al., "QLoRA" (arXiv 2305.14314) sec. 3: NF4 in blocks of 64, whose scales have 8 bits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from ludus.errors import UserError
from ludus.models.operations import torch_linear

logger = logging.getLogger(__name__)

INSTALL_HINT = "pip install 'ludus[quantization]'"
BLOCK = 64
"""Weights with one scale; with 4 bits each, and 256 scales with one of their own, a weight takes 0.516 bytes."""


class FourBitLinear(nn.Module):
    """A linear layer with NF4 weights."""

    def __init__(self, layer: nn.Linear, device: torch.device) -> None:
        """Takes the weights of `layer`, in its type, to `device`."""
        super().__init__()
        functional = load_library()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype = layer.weight.dtype
        """Of what it is multiplied with."""
        weight = layer.weight.detach().to(device).contiguous()
        packed, self._state = functional.quantize_4bit(
            weight, blocksize=BLOCK, quant_type="nf4", compress_statistics=True
        )
        self._dequantize = functional.dequantize_4bit
        self.register_buffer("packed", packed, persistent=False)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().to(device), requires_grad=False)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, nf4"

    @property
    def weight(self) -> Tensor:
        """Shape (N, K), made anew whenever it is asked for."""
        return cast(Tensor, self._dequantize(self.packed, self._state)).detach()

    @property
    def nbytes(self) -> int:
        """What the weights take."""
        state = self._state
        kept = (self.packed, state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)
        return sum(cast(Tensor, each).nbytes for each in kept)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)

    def product(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """As `Linear` (operations.py); under autograd too."""
        if torch.is_grad_enabled():
            return cast(Tensor, _Product.apply(x, added, self))  # type: ignore[no-untyped-call]
        return torch_linear(x, self.weight, self.bias, added)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor | None, layer: FourBitLinear) -> Tensor:
        ctx.layer = layer
        return torch_linear(x, layer.weight, layer.bias, added)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wants_x, wants_added, _ = ctx.needs_input_grad
        return grad @ ctx.layer.weight if wants_x else None, grad if wants_added else None, None


def load_library() -> Any:
    """bitsandbytes' functions. Raises UserError if it is missing."""
    try:
        from bitsandbytes import functional
    except ImportError as error:
        raise UserError(f"model.quantization=nf4 needs bitsandbytes: {INSTALL_HINT}") from error
    return functional


def quantize_layers(layers: Iterable[nn.Module], device: torch.device) -> None:
    """Keep the weights of all linear layers within a decoder's `layers` in 4 bits, on `device`; those of routers and of
    adapters stay as they are. Weights are moved one by one.

    Raises UserError if bitsandbytes is missing, or if there is no such layer.
    """
    made: list[FourBitLinear] = []
    for layer in layers:
        for name, part in [*layer.named_modules()]:
            parent, _, own = name.rpartition(".")
            if type(part) is nn.Linear and not _is_left(name):
                made.append(FourBitLinear(part, device))
                setattr(layer.get_submodule(parent), own, made[-1])
    if not made:
        raise UserError(
            "model.quantization=nf4 finds no linear layer within the model's layers; leave model.quantization unset"
        )
    logger.info("model.quantized layers=%d bytes=%d", len(made), sum(each.nbytes for each in made))


def _is_left(name: str) -> bool:
    """Adapters are trained; routers choose between experts by small differences."""
    words = name.removesuffix(".base_layer").split(".")
    return any(word.startswith("lora_") for word in words) or words[-1].endswith("gate") or words[-1] == "router"
