"""What the wrappers of compiled libraries share: opening one, types by number, attention's rule, what none serves.

Knows: ctypes, tensors on the CPU.  Knows not: compilers, what a library computes.
torch is imported first, so that libraries run on torch's own OpenMP threads instead of bringing a second pool; those
without OpenMP share one set of threads.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ludus.kernels.build import POOL, build_library, obtain

logger = logging.getLogger(__name__)

DTYPES: Mapping[torch.dtype, int] = MappingProxyType({torch.float32: 0, torch.bfloat16: 1})
"""`enum Dtype` of numbers.h."""

# The sums of one head must stay in registers and first-level cache.
MAX_HEAD_DIM = 256
ADDRESS, SIZE, COUNT, FRACTION = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
"""Kinds of arguments: any pointer, int64_t, int32_t, float."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionRule:
    """How scores become weights in one layer."""

    scale: float
    window: int | None
    """A token sees only keys less than `window` positions back, itself included. None: all before it."""
    softcap: float | None
    """Scores s become softcap * tanh(s / softcap). None: they stay."""
    sinks: Tensor | None = None
    """One score for each query head, fp32 (H,), that takes its share of the softmax and brings no value (gpt-oss).
    None: there are none."""


class RuleStruct(ctypes.Structure):
    """`AttentionRule` in C++, valid while the rule lives; 0 stands for None."""

    _fields_ = [
        *(("scale", ctypes.c_float), ("softcap", ctypes.c_float), ("window", ctypes.c_int32)),
        ("sinks", ctypes.c_void_p),
    ]

    @classmethod
    def of(cls, rule: AttentionRule) -> RuleStruct:
        sinks = rule.sinks
        assert sinks is None or (sinks.dtype == torch.float32 and sinks.is_contiguous()), "kernels read numbers of fp32"
        return cls(rule.scale, rule.softcap or 0.0, rule.window or 0, None if sinks is None else sinks.data_ptr())


class HeadsStruct(ctypes.Structure):
    """Where the heads of queries, keys or values lie, and how far one is from the next, and one row from the next."""

    _fields_ = [("values", ctypes.c_void_p), ("head", ctypes.c_int64), ("row", ctypes.c_int64)]

    @classmethod
    def of(cls, tensor: Tensor) -> HeadsStruct:
        """tensor: (..., heads, rows, width), valid while it lives."""
        return cls(tensor.data_ptr(), tensor.stride(-3), tensor.stride(-2))


def load_library(path: Path, signatures: Mapping[str, tuple[Any, ...]]) -> ctypes.CDLL:
    """The compiled library at `path`; functions named in `signatures` take those arguments and return nothing.

    Raises OSError if the library cannot be opened on this machine, AttributeError if it lacks a function.
    """
    library = ctypes.CDLL(str(path))
    if hasattr(library, "ludus_use_threads"):  # compiled without OpenMP
        library.ludus_use_threads(_share())
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


@cache
def _share() -> Any:
    """The function that shares a library's work among the threads of this process. None: there are none to be had."""
    share = obtain(lambda: ctypes.CDLL(str(build_library(POOL))).ludus_share)
    if not isinstance(share, str):
        return share
    logger.warning("our kernels compute on one thread: %s", share)
    return None


def cost_level(device: torch.device) -> int:
    """Of the log, for saying that torch's operations take a kernel's place: on the CPU that costs speed, on cards they
    are what there is."""
    return logging.WARNING if device.type == "cpu" else logging.INFO


def refuse(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why no library serves tensors there or of that type. None: they do."""
    if device.type != "cpu":
        return f"it runs on the CPU, and the weights are on {device}"
    if dtype not in DTYPES:
        return f"it knows fp32 and bf16, and the weights are {dtype}"
    return None


def refuse_heads(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """`refuse`, and why no library attends with heads of that width. None: they do."""
    reason = refuse(device, dtype)
    if reason is None and (head_dim % 16 or head_dim > MAX_HEAD_DIM):
        return f"it takes heads of 16, 32 … {MAX_HEAD_DIM} dimensions, and the model has {head_dim}"
    return reason


def dense_last(tensor: Tensor) -> Tensor:
    """The tensor, copied unless the numbers of its last dimension lie side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
