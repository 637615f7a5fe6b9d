"""Rounds fp32 master weights to bf16 or fp16: to nearest, or dithered, so that they are right on average.

Knows: numbers and their index in a weight.  Knows not: optimizers, engines, which weights there are.
Invariant: the result depends only on the number, the run's seed, the weight's name and the number's index in it, so it
is equal on every rank, replica and device, and after a resume.

A model's weights begin on bf16's grid, whose spacing near 0.1 is 5e-4. With steps of 1e-5 a master needs some 25 steps
to get half of that away, so with rounding to nearest the weights that sample would not change at all for that long.
Here every number has a fixed random threshold, and is rounded up as soon as the part that bf16 cuts off exceeds it. On
average over the numbers of a matrix product the published weights equal the masters; a weight whose master does not
change does not change either; and none flickers between two values, because its threshold is fixed.

Source of rounding by chance: Gupta et al., "Deep Learning with Limited Numerical Precision" (arXiv 1502.02551) sec. 3.
"""

from __future__ import annotations

import logging
import zlib

import torch
from torch import Tensor

from ludus.kernels.build import build_library, obtain
from ludus.kernels.library import cost_level
from ludus.kernels.rounding import NativeRounding
from ludus.trainer.settings import RoundingName

_log = logging.getLogger(__name__)

# How many numbers torch's operations round at a time (on a GPU, or without a compiler): limits the thresholds' memory.
_CHUNK = 1 << 24
_LOW_HALF = 0xFFFF


class Rounding:
    """The rounding of a run's master weights."""

    def __init__(self, name: RoundingName, seed: int, device: torch.device) -> None:
        """seed: the run's.  device: of the weights."""
        self.name = name
        self.seed = seed
        self._native: NativeRounding | None = None
        if name == "dither" and device.type == "cpu":
            native = obtain(lambda: NativeRounding(build_library("rounding")))
            if isinstance(native, str):
                _log.log(cost_level(device), "weights are rounded by torch's operations, which are slower: %s", native)
            else:
                self._native = native

    @torch.no_grad()
    def copy(self, master: Tensor, into: Tensor, *, name: str, first: int = 0, stride: int | None = None) -> None:
        """Write fp32 numbers into a tensor of the same shape, rounded if its type is smaller.

        master: perhaps in the host's memory while `into` is on a card, which then rounds one part after the other.
        name: of the weight.  first: index in the weight of the first number.  stride: of a matrix, by how much the
        index grows from row to row. None: the numbers follow each other in the weight.
        """
        assert master.dtype == torch.float32 and master.shape == into.shape, "masters are fp32, and shaped as weights"
        if self.name == "nearest" or into.dtype == torch.float32:
            into.copy_(master)
            return
        key = zlib.crc32(name.encode(), self.seed & 0xFFFFFFFF)
        if (
            self._native is not None
            and into.dtype == torch.bfloat16
            and master.is_contiguous()
            and into.is_contiguous()
        ):
            if stride is None:
                self._native(master, into, first=first, key=key)
                return
            for row, (exact, rounded_row) in enumerate(zip(master, into, strict=True)):
                self._native(exact, rounded_row, first=first + row * stride, key=key)
            return
        how = _ROUNDINGS[into.dtype]
        whole = into if into.is_contiguous() else torch.empty(into.shape, dtype=into.dtype, device=into.device)
        places = torch.split(whole.view(-1), _CHUNK)
        for number, (part, place) in enumerate(zip(torch.split(master.reshape(-1), _CHUNK), places, strict=True)):
            at = torch.arange(number * _CHUNK, number * _CHUNK + len(part), device=into.device)
            if stride is not None:
                at = at // master.shape[-1] * stride + at % master.shape[-1]
            place.copy_(how(part.to(into.device, non_blocking=True), mixed_bits_at(at + first, key)))
        if whole is not into:
            into.copy_(whole)


def round_up_above(exact: Tensor, thresholds: Tensor) -> Tensor:
    """fp32 rounded to bf16's grid: away from zero where the cut-off bits plus the threshold's low half reach 2^16.

    thresholds: int32, of which the low 16 bits are used.
    """
    bits = exact.view(torch.int32) + (thresholds & _LOW_HALF)
    return torch.where(exact.isfinite(), bits.bitwise_and_(-1 - _LOW_HALF).view(torch.float32), exact)


def round_up_above_half(exact: Tensor, thresholds: Tensor) -> Tensor:
    """fp32 rounded to fp16's grid: away from zero where the cut-off part, as a share of fp16's spacing, plus the
    threshold's low 13 bits, as a share of 2^13, reach 1; fp32 holds their sum exactly.

    fp16's spacing is that of ten bits after the first, and 2^-24 below 2^-14.
    """
    exponents = exact.view(torch.int32).bitwise_and(0x7F800000) >> 23
    spacing = ((exponents.clamp(127 - 14, 254) - 10) << 23).view(torch.float32)
    shares = (thresholds & 0x1FFF).float() / 0x2000
    rounded = torch.floor(exact.abs() / spacing + shares) * spacing
    return torch.where(exact.isfinite(), rounded.copysign(exact), exact)


_ROUNDINGS = {torch.bfloat16: round_up_above, torch.float16: round_up_above_half}


def mixed_bits(count: int, first: int, key: int, device: torch.device) -> Tensor:
    """`mixed_bits_at` the indices `first`, `first + 1` …"""
    return mixed_bits_at(torch.arange(first, first + count, device=device), key)


def mixed_bits_at(indices: Tensor, key: int) -> Tensor:
    """Pseudo-random int32 for each of the int64 indices under `key`; the same as `mix` in vectors.h.

    Source: Wellons' "lowbias32", https://github.com/skeeto/hash-prospector
    """
    mixed = indices ^ key
    if indices.device.type == "mps":  # what becomes there of a number that int32 does not hold is nowhere written down
        mixed = torch.where(mixed >= 1 << 31, mixed - (1 << 32), mixed)
    x = mixed.to(torch.int32)
    x = x ^ _shifted(x, 16)
    x = x * 0x7FEB352D
    x = x ^ _shifted(x, 15)
    x = x * (0x846CA68B - (1 << 32))
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shifted to the right as unsigned numbers are, filled with zeros."""
    return (x >> by) & ((1 << (32 - by)) - 1)
