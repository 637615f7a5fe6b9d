"""Chooses the attention kernel: native where it can be built, eager elsewhere.

Knows: both kernels.  Knows not: models, settings files.
"""

from __future__ import annotations

import logging
from typing import Literal

from torch import Tensor

from ludus.errors import BackendError
from ludus.inference.kernels.base import AttentionKernel
from ludus.inference.kernels.eager import EagerKernel
from ludus.inference.kernels.native import NativeKernel
from ludus.native.build import build_library

_log = logging.getLogger(__name__)


def choose_kernel(name: Literal["auto", "native", "eager"], weight: Tensor, *, head_dim: int) -> AttentionKernel:
    """The kernel called `name` for a model with the type and device of `weight`.

    Raises BackendError if the native kernel was asked for by name and cannot be had.
    """
    if name == "eager":
        return EagerKernel()
    reason = NativeKernel.refusal(weight, head_dim)
    if reason is None:
        try:
            return NativeKernel(build_library("attention"))
        except (BackendError, OSError) as error:
            reason = str(error)
    if name == "native":
        raise BackendError(f"the native attention kernel cannot be used: {reason}; set engine.kernels to auto or eager")
    _log.info("attention runs on torch's operations, which samples about half as fast as the native kernel: %s", reason)
    return EagerKernel()
