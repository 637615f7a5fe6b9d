"""What drawing a token means: the SamplingKernel protocol, what a row asks for, the one number that decides.

Knows: sampling, random numbers.  Knows not: heads, pages, sequences.
Shapes: N rows, V vocabulary.

Each row has one uniform number of its own, keyed by its seed and position, so that a draw never depends on who else
is in the batch. The number is looked up in the cumulative distribution on two levels: the sums of blocks, then the
tokens of one block; nothing is sorted unless a row's sampling asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ludus.engines.sequence import SampledToken
from ludus.types import Sampling

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What one row asks for."""

    sampling: Sampling
    uniform: float
    """In [0, 1)."""
    token_ids: Sequence[int]
    """Prompt and answer so far; read by penalties only."""
    num_prompt: int
    allowed: bytes | None = None
    """One bit for each token that may be drawn, in native 32-bit words; ids beyond them may not. None: all may."""


class SamplingKernel(Protocol):
    """Draws tokens from logits."""

    def draw(
        self, logits_NV: Tensor, requests: Sequence[SamplingRequest], *, softcap: float | None
    ) -> list[SampledToken]:
        """One token per row, in their order. The logits are as the head gives them, before their cap.

        Penalties, biases, what is allowed, temperature, top-k, top-p and min-p change a row in this order;
        temperature 0 takes the likeliest. Where the sampling cuts, the draw tells what was kept.
        """


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, position) alone.

    Source: splitmix64 (Steele, Lea, Flood 2014, fig. 17), keyed twice; 48 bits, so that times a sum stays below it.
    """
    return (_mix((_mix(seed & _MASK) + position * 0x9E3779B97F4A7C15) & _MASK) >> 16) * 2.0**-48


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Logits l as softcap * tanh(l / softcap)."""
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def top_pairs(ids: Sequence[int], logprobs: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens with their logprobs; those that were cut are none of them."""
    return tuple(pair for pair in zip(ids, logprobs, strict=True) if pair[1] > -math.inf)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
