"""Which type of numbers a model computes in where its settings leave it to the machine.

Knows: how fast torch multiplies here, measured once and kept in the user's cache; what cards compute.
Knows not: models, kernels of ours.
Invariant: on one machine the answer stays what it was, until torch, the processor or a cap on its instructions changes.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Literal

import torch

from ludus.kernels.library import CAPS, torch_here
from ludus.models.device import choose_device
from ludus.models.settings import ModelSettings
from ludus.models.threads import choose_threads
from ludus.processes.files import remembered, user_cache

logger = logging.getLogger(__name__)

_AMPERE = (8, 0)
"""The first compute capability with products in bf16; cards before it emulate them, slower than fp32."""
DtypeName = Literal["bfloat16", "float16", "float32"]
_WIDTH, _OUTPUTS = 576, 1536
"""Of the products that are timed: those of a small model's gated MLP."""
_FEW_ROWS, _MANY_ROWS = 16, 384
"""Where bf16 is emulated, many rows would take minutes; a few tell."""
_CLEARLY = 4.0
"""By a few rows alone it is decided if one type takes so many times as long."""
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """Seconds of one layer's product and its two gradients by torch, in each type."""

    bfloat16_s: float
    float32_s: float

    @property
    def dtype(self) -> DtypeName:
        """bf16 where it is at least as fast: it takes half the memory."""
        return "bfloat16" if self.bfloat16_s <= self.float32_s else "float32"

    @property
    def ratio(self) -> float:
        """How many times as long bf16 takes."""
        return self.bfloat16_s / self.float32_s


def with_dtype(settings: ModelSettings) -> ModelSettings:
    """The settings with `auto` replaced by what computes fastest here: bf16 on a card, fp16 on one that only emulates
    bf16; on a processor bf16 unless fp32 is faster. Whatever is not bf16, a warning tells."""
    if settings.dtype != "auto":
        return settings
    return settings.model_copy(update={"dtype": choose_dtype(choose_device(settings.device))})


def choose_dtype(device: torch.device) -> DtypeName:
    """What `auto` stands for on this device."""
    if device.type == "cuda":
        return _of_card(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))
    if device.type == "mps":  # macOS 14 brought bf16
        return "bfloat16" if torch.backends.mps.is_macos_or_newer(14, 0) else "float32"
    times = product_times()
    _tell(times)
    return times.dtype


@cache
def _of_card(name: str, capability: tuple[int, int]) -> DtypeName:
    if capability >= _AMPERE:
        logger.info("model.dtype chosen=bfloat16 card=%r", name)
        return "bfloat16"
    logger.warning(
        "model.dtype: auto is float16 here: %s, of compute capability %d.%d, computes no bf16; losses are scaled. A "
        "model whose activations exceed 65,504 needs model.dtype=float32",
        name,
        *capability,
    )
    return "float16"


@cache
def _tell(times: ProductTimes) -> None:
    """Once in a process: who computes in fp32 takes twice the memory."""
    logger.info("model.dtype chosen=%s bf16_takes=%.2f", times.dtype, times.ratio)
    if times.dtype == "float32":
        logger.warning(
            "model.dtype: auto is float32 here: bf16 products take %.1f times as long on this processor; "
            "model.dtype=bfloat16 would halve the memory of weights and pages all the same",
            times.ratio,
        )


@cache
def product_times(folder: Path | None = None) -> ProductTimes:
    """Measured in about a second, once for this processor, this torch and these caps on instructions.

    folder: where it is kept. None: the user's cache.
    """
    path = (folder or user_cache() / "machine") / f"products-{torch_here()}.json"
    return ProductTimes(**remembered(path, lambda: asdict(_measure())))


def caps_set() -> list[str]:
    """The variables that are set by which torch leaves out instructions of the processor, as `NAME=value`."""
    return [f"{name}={os.environ[name]}" for name in CAPS if name in os.environ]


def _measure() -> ProductTimes:
    choose_threads()
    few = _times(_FEW_ROWS)
    return few if max(few.ratio, 1 / few.ratio) > _CLEARLY else _times(_MANY_ROWS)


def _times(num_rows: int) -> ProductTimes:
    """Medians of rounds in which the types take turns."""
    taken: dict[torch.dtype, list[float]] = {torch.bfloat16: [], torch.float32: []}
    for round_idx in range(_ROUNDS + 1):
        for dtype, own in taken.items():
            x, weight, grad = (
                torch.ones(shape, dtype=dtype)
                for shape in ((num_rows, _WIDTH), (_OUTPUTS, _WIDTH), (num_rows, _OUTPUTS))
            )
            started_at = time.perf_counter()
            _ = x @ weight.T, grad @ weight, grad.T @ x
            if round_idx > 0:  # the first prepares
                own.append(time.perf_counter() - started_at)
    return ProductTimes(median(taken[torch.bfloat16]), median(taken[torch.float32]))
