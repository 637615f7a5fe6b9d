"""A step of AdamW with moments in bf16 in C++: adamw.cpp through its plain C interface.

Knows: the compiled library, tensors on the CPU.  Knows not: schedules, parameters, clipping.
Invariant: equal inputs give equal bits, however many threads compute them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ludus.kernels.library import ADDRESS, COUNT, FRACTION, SIZE, load_library


@dataclass(frozen=True, slots=True)
class AdamWStep:
    """Hyperparameters and state of one optimizer step."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    num_steps: int
    """Steps so far, this one included; at least 1."""
    seed: int
    """Seed of the stochastic rounding, below 2^32."""
    start: int = 0
    """Index in the weight of the first of the numbers that are given; only torch's operations take a part of a
    weight."""


class _Step(ctypes.Structure):
    _names = ("lr", "beta1", "beta2", "eps", "decay", "correction1", "correction2")
    _fields_ = [*((name, FRACTION) for name in _names), ("seed", ctypes.c_uint32)]


class NativeHalfStep:
    """The fast implementation of StepOne (ludus/trainer/adamw.py) with moments in bf16, for weights on the CPU."""

    def __init__(self, library: Path) -> None:
        signature = (ADDRESS, ADDRESS, ADDRESS, ADDRESS, SIZE, ADDRESS, COUNT)
        self._step = load_library(library, {"ludus_adamw": signature}).ludus_adamw

    def __call__(self, weight: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: AdamWStep) -> None:
        assert all(each.is_contiguous() for each in (weight, gradient, first, second)), "tensors must be contiguous"
        assert weight.dtype == gradient.dtype == torch.float32, "weights and gradients must be fp32"
        assert first.dtype == second.dtype == torch.bfloat16, "moments must be bf16"
        assert not step.start, "weights must be whole"
        beta1, beta2 = step.betas
        corrections = (1 - beta1**step.num_steps, 1 - beta2**step.num_steps)
        how = _Step(step.lr, beta1, beta2, step.eps, step.weight_decay, *corrections, step.seed)
        self._step(
            weight.data_ptr(), gradient.data_ptr(), first.data_ptr(), second.data_ptr(), weight.numel(),
            ctypes.byref(how), torch.get_num_threads(),
        )  # fmt: skip
