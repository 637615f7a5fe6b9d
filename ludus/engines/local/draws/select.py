"""Chooses what draws tokens: native where it can be built, eager elsewhere.

Knows: both kernels.  Knows not: models, settings files.
"""

from __future__ import annotations

import logging

from torch import Tensor

from ludus.engines.local.draws.base import SamplingKernel
from ludus.engines.local.draws.eager import EagerSampling
from ludus.engines.local.draws.native import NativeSampling
from ludus.engines.local.settings import KernelName
from ludus.errors import BackendError
from ludus.kernels.build import build_library, obtain
from ludus.kernels.library import cost_level, refuse

_log = logging.getLogger(__name__)


def choose_sampling_kernel(name: KernelName, head_VD: Tensor) -> SamplingKernel:
    """The kernel called `name` for logits of the head `head_VD`; triton is of attention alone and means auto here.

    Raises BackendError if the native kernel was asked for by name and cannot be had.
    """
    if name == "eager":
        return EagerSampling(head_VD.shape[0], head_VD.device)
    native = obtain(lambda: NativeSampling(build_library("sampling")), refuse(head_VD.device, head_VD.dtype))
    if not isinstance(native, str):
        return native
    if name == "native":
        raise BackendError(f"the native sampler cannot be used: {native}; set engine.kernels to auto or eager")
    _log.log(
        cost_level(head_VD.device),
        "tokens are drawn with torch's operations, which takes several times as long: %s",
        native,
    )
    return EagerSampling(head_VD.shape[0], head_VD.device)
