"""Chooses what a model computes with: native operations where they can be had, torch's own elsewhere.

Knows: both.  Knows not: modules, gradients.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ludus.kernels import linear
from ludus.kernels.build import build_library, obtain
from ludus.kernels.library import cost_level, refuse
from ludus.kernels.rowwise import NativeRowwise
from ludus.models.rowwise import Rowwise, TorchRowwise

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Operations:
    """What the parts of one model's layers are made of."""

    rowwise: Rowwise
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """x @ weight.T + bias, without gradients; x: (…, K), weight: (N, K), bias: (N,) or None."""


def choose_operations(weight: Tensor, device: torch.device | None = None) -> Operations:
    """For a model whose weights have the type and device of `weight`, a matrix.

    device: where they are going to compute. None: where they are.
    """
    if device not in (None, weight.device):
        return Operations(TorchRowwise(), functional.linear)
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


def _linear(weight: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    reason = linear.unsupported_reason(weight)
    if reason is None:
        return linear.linear
    _log.log(
        cost_level(weight.device),
        "linear layers run on torch's operations, which are slower for few tokens: %s",
        reason,
    )
    return functional.linear
