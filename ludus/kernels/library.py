"""Shared by the wrappers of compiled libraries: opening them, C types, attention's rule, unsupported tensors.

Knows: ctypes, tensors on the CPU.  Knows not: compilers, what a library computes.
torch is imported first, so that libraries use torch's OpenMP threads instead of a second pool; libraries compiled
without OpenMP share one thread pool of ours.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ludus.kernels.build import POOL, build_library, obtain
from ludus.machine import Machine

logger = logging.getLogger(__name__)

DTYPES: Mapping[torch.dtype, int] = MappingProxyType({torch.float32: 0, torch.bfloat16: 1})
"""`enum Dtype` of numbers.h."""

CAPS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE")
"""Variables by which torch's products leave out instructions that the processor has."""
# The sums of one head must fit into registers and first-level cache.
MAX_HEAD_DIM = 256
ADDRESS, SIZE, COUNT, FRACTION = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
"""C types of arguments: any pointer, int64_t, int32_t, float."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRule:
    """How scores become weights in one layer."""

    scale: float
    window: int | None
    """A token attends only to keys less than `window` positions back, itself included. None: to all before it."""
    softcap: float | None
    """Scores s become softcap * tanh(s / softcap). None: no cap."""
    sinks: Tensor | None = None
    """A score for each query head, fp32 (H,), that is added to the softmax's denominator without a value (gpt-oss).
    None: there are none."""


class RuleStruct(ctypes.Structure):
    """`AttentionRule` in C++, valid as long as the rule exists; 0 stands for None."""

    _fields_ = [
        *(("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("window", ctypes.c_int32)),
        ("sinks", ctypes.c_void_p),
    ]

    @classmethod
    def of(cls, rule: AttentionRule) -> RuleStruct:
        sinks = rule.sinks
        assert sinks is None or (sinks.dtype == torch.float32 and sinks.is_contiguous()), "sinks must be dense fp32"
        return cls(rule.scale, rule.softcap or 0.0, rule.window or 0, None if sinks is None else sinks.data_ptr())


class HeadsStruct(ctypes.Structure):
    """Address of queries, keys or values, and the strides of heads and rows."""

    _fields_ = [("values", ctypes.c_void_p), ("head", ctypes.c_int64), ("row", ctypes.c_int64)]

    @classmethod
    def of(cls, tensor: Tensor) -> HeadsStruct:
        """tensor: (..., heads, rows, width); the result is valid as long as it exists."""
        return cls(tensor.data_ptr(), tensor.stride(-3), tensor.stride(-2))


def load_library(path: Path, signatures: Mapping[str, tuple[Any, ...]]) -> ctypes.CDLL:
    """The compiled library at `path`; functions named in `signatures` take those arguments and return nothing.

    Raises OSError if the library cannot be opened on this machine, AttributeError if it lacks a function.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise OSError(
            f"{error}; if its folder is on a file system without programs (noexec), set XDG_CACHE_HOME to a folder on "
            "another one, else remove the file and start again"
        ) from error
    if hasattr(library, "ludus_use_threads"):  # compiled without OpenMP
        library.ludus_use_threads(_share())
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


@cache
def _share() -> Any:
    """The function of the thread pool that distributes a library's work. None: the pool cannot be loaded."""
    share = obtain(lambda: ctypes.CDLL(str(build_library(POOL))).ludus_share)
    if not isinstance(share, str):
        return share
    logger.warning("our kernels compute on one thread: %s", share)
    return None


def torch_here() -> str:
    """A key of what torch computes with: by processor, version and caps on instructions."""
    machine = Machine.look(seconds=0)
    caps = [f"{name}={os.environ.get(name, '')}" for name in CAPS]
    capability = torch.backends.cpu.get_cpu_capability()
    parts = (platform.machine(), machine.processor, *machine.instructions, torch.__version__, capability, *caps)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def cost_level(device: torch.device) -> int:
    """Log level of the message that torch's operations replace a kernel: on the CPU that costs speed, on cards it is
    normal."""
    return logging.WARNING if device.type == "cpu" else logging.INFO


def refuse(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the libraries do not support this device or type. None: they do."""
    if device.type != "cpu":
        return f"it runs on the CPU only, and the weights are on {device}"
    if dtype not in DTYPES:
        return f"it supports fp32 and bf16, and the weights are {dtype}"
    return None


def refuse_heads(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """As `refuse`, also for the width of attention heads. None: supported."""
    reason = refuse(device, dtype)
    if reason is None and (head_dim % 16 or head_dim > MAX_HEAD_DIM):
        return f"it supports heads of 16, 32 … {MAX_HEAD_DIM} dimensions, and the model has {head_dim}"
    return reason


def dense_last(tensor: Tensor) -> Tensor:
    """The tensor, copied unless its last dimension has stride 1."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
