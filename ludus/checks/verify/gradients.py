"""Collects gradients of trainers, and measures the difference of two sets of tensors.

Knows: trainers, tensors by name.  Knows not: what the gradients are compared for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ludus.algorithms.pack import Batch
from ludus.algorithms.settings import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor

    from ludus.trainer.sharded import ShardedTrainer
    from ludus.trainer.step import ModelTrainer

    AnyTrainer = ModelTrainer | ShardedTrainer


def gradient_of(
    trainer: AnyTrainer, batches: Iterable[Batch], algorithm: AlgorithmSettings | None = None
) -> dict[str, Tensor]:
    """The sum of the batches' gradients, by name of the weight; the trainer's gradients are cleared."""
    for batch in batches:
        trainer.forward_backward(batch, algorithm)
    gradient = {name: trainer.gradient(name).clone() for name in trainer.model.trainable}
    trainer.forget_gradients()
    return gradient


def rel_diff(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Norm of the difference divided by the norm of `expected`, over all tensors together; not divided if that is 0."""
    off, norm = (
        math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
        for tensors in ((got[name] - each for name, each in expected.items()), expected.values())
    )
    return off / norm if norm else off
