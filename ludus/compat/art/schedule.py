"""Learning rates of supervised training, one for each batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from ludus.errors import UserError

Method = Literal["linear", "cosine", "constant"]


def create_lr_schedule(
    total_steps: int, peak_lr: float, method: Method = "linear", warmup_steps: int = 0, min_lr: float = 0.0
) -> list[float]:
    """The learning rate of each of `total_steps`: linear warm-up to `peak_lr`, then decay towards `min_lr`, or
    constant.

    The first warm-up step has peak_lr / warmup_steps; `min_lr` would be reached one step after the last.
    """
    if total_steps < 1 or not 0 <= warmup_steps <= total_steps or not 0 <= min_lr <= peak_lr:
        raise UserError(
            f"a schedule of total_steps={total_steps}, warmup_steps={warmup_steps}, peak_lr={peak_lr}, min_lr={min_lr} "
            "cannot be; allowed: at least one step, no more of them warming up, and 0 <= min_lr <= peak_lr"
        )
    if method not in ("linear", "cosine", "constant"):
        raise UserError(f"method={method!r} is unknown; known: linear, cosine, constant")
    rates = []
    for step in range(total_steps):
        if step < warmup_steps:
            rates.append(peak_lr * (step + 1) / warmup_steps)
            continue
        done = (step - warmup_steps) / (total_steps - warmup_steps)
        left = {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1.0}[method]
        rates.append(peak_lr if method == "constant" else min_lr + (peak_lr - min_lr) * left)
    return rates


def learning_rates(rate: float | Sequence[float], num_batches: int) -> list[float]:
    """The learning rate of each batch. Raises UserError if a list of rates has another length than the batches."""
    if isinstance(rate, Sequence):
        if len(rate) != num_batches:
            raise UserError(
                f"learning_rate has {len(rate)} values, and the trajectories make {num_batches} batches; give one for "
                "each batch, or one number"
            )
        return list(rate)
    return [rate] * num_batches
