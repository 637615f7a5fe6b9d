"""Chooses what a model computes with: native operations where they can be had, torch's own elsewhere.

Knows: both.  Knows not: modules, gradients.
"""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ludus.kernels import linear
from ludus.kernels.build import build_library, obtain
from ludus.kernels.library import cost_level, refuse
from ludus.kernels.rowwise import NativeRowwise
from ludus.models.rowwise import Rowwise, TorchRowwise

_log = logging.getLogger(__name__)


class Linear(Protocol):
    """A product of a layer's weight."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, added: Tensor | None = None, /) -> Tensor:
        """x @ weight.T + bias + added; x: (…, K), weight: (N, K), bias: (N,), added: (…, N), which may be overwritten.

        `added` takes part in the sum before that is rounded. Added to a product that has been rounded to bf16, most of
        what is less than half a step of it would be lost, in the same direction in every product.
        """


@dataclass(frozen=True, slots=True)
class Operations:
    """What the parts of one model's layers are made of."""

    rowwise: Rowwise
    linear: Linear
    """Without gradients."""


def choose_operations(weight: Tensor, device: torch.device | None = None) -> Operations:
    """For a model whose weights have the type and device of `weight`, a matrix.

    device: where they are going to compute. None: where they are.
    """
    if device not in (None, weight.device):
        return Operations(TorchRowwise(), torch_linear)
    return Operations(_rowwise(weight), _linear(weight))


def _rowwise(weight: Tensor) -> Rowwise:
    if weight.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from ludus.kernels.triton_rowwise import TritonRowwise  # triton comes with torch for CUDA

        return TritonRowwise()
    native = obtain(lambda: NativeRowwise(build_library("rowwise")), refuse(weight.device, weight.dtype))
    if not isinstance(native, str):
        return native
    _log.log(
        cost_level(weight.device),
        "norms, gates and rotary positions run on torch's operations, which are slower: %s",
        native,
    )
    return TorchRowwise()


def torch_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, added: Tensor | None = None, /) -> Tensor:
    """By torch's operations, with gradients where they are on."""
    if added is None:
        return functional.linear(x, weight, bias)
    product = torch.addmm(added.flatten(0, -2), x.flatten(0, -2), weight.t()).view(added.shape)
    return product if bias is None else product + bias


def native_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, added: Tensor | None = None, /) -> Tensor:
    return linear.linear(x, weight, bias, added, adds=added is not None)


def _linear(weight: Tensor) -> Linear:
    reason = linear.unsupported_reason(weight)
    if reason is None:
        return native_linear
    _log.log(
        cost_level(weight.device),
        "linear layers run on torch's operations, which are slower for few tokens: %s",
        reason,
    )
    return torch_linear
