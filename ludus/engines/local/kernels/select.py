"""Chooses the attention kernel: native where it can be built, Triton's on a CUDA card, eager elsewhere.

Knows: all kernels.  Knows not: models, settings files.
"""

from __future__ import annotations

import logging

from torch import Tensor

from ludus.engines.local.kernels.base import AttentionKernel
from ludus.engines.local.kernels.eager import EagerKernel
from ludus.engines.local.kernels.native import NativeKernel
from ludus.engines.local.kernels.triton import TritonKernel
from ludus.engines.local.settings import KernelName
from ludus.errors import BackendError
from ludus.kernels.build import build_library, obtain
from ludus.kernels.library import cost_level, refuse_heads

_log = logging.getLogger(__name__)


def choose_kernel(name: KernelName, weight: Tensor, *, head_dim: int) -> AttentionKernel:
    """The kernel called `name` for a model with the type and device of `weight`; auto is the fastest that can be had.

    Raises BackendError if another kernel than the eager one was asked for by name and cannot be had.
    """
    if name == "eager":
        return EagerKernel()
    wanted = name if name != "auto" else "triton" if weight.device.type == "cuda" else "native"
    kernel: AttentionKernel | str
    if wanted == "triton":
        kernel = obtain(lambda: TritonKernel(weight.device), TritonKernel.unsupported_reason(weight))
    else:
        reason = refuse_heads(weight.device, weight.dtype, head_dim)
        kernel = obtain(lambda: NativeKernel(build_library("attention")), reason)
    if not isinstance(kernel, str):
        return kernel
    if name != "auto":
        raise BackendError(f"the {name} attention kernel cannot be used: {kernel}; set engine.kernels to auto or eager")
    _log.log(
        cost_level(weight.device),
        "attention runs on torch's operations, which samples more slowly than the %s kernel: %s",
        wanted,
        kernel,
    )
    return EagerKernel()
