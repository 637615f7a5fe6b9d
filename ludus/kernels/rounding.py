"""Rounds fp32 weights to bf16 in C++: rounding.cpp through its plain C interface.

Knows: the compiled library, tensors on the CPU.  Knows not: weights' names, seeds.
Invariant: the bits are those of `round_up_above` and `mixed_bits` (ludus/trainer/rounding.py).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from ludus.kernels.library import ADDRESS, COUNT, SIZE, load_library


class NativeRounding:
    """Rounds while copying; each tensor is read or written once."""

    def __init__(self, library: Path) -> None:
        signature = (ADDRESS, ADDRESS, SIZE, SIZE, ctypes.c_uint32, COUNT)
        self._round = load_library(library, {"ludus_round": signature}).ludus_round

    def __call__(self, master: Tensor, into: Tensor, *, first: int, key: int) -> None:
        """first: index of the first number in its weight.  key: below 2^32."""
        assert master.is_contiguous() and into.is_contiguous(), "tensors must be contiguous"
        assert master.dtype == torch.float32 and into.dtype == torch.bfloat16, "rounds fp32 to bf16 only"
        self._round(master.data_ptr(), into.data_ptr(), master.numel(), first, key, torch.get_num_threads())
