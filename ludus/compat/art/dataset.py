"""A data set in batches over epochs, in an order that depends on the epoch alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ludus.compat.art.bars import progress_bar
from ludus.errors import UserError

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class DatasetBatch(Generic[ItemT]):
    """What one step is to be made of."""

    items: list[ItemT]
    step: int
    """Since the first epoch began."""
    epoch: int
    epoch_step: int
    """Since this epoch began."""


def iterate_dataset(
    dataset: Sequence[ItemT],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = True,
) -> Iterator[DatasetBatch[ItemT]]:
    """Batches of `groups_per_step` items, the last of an epoch perhaps smaller; every epoch in an order of its own.

    initial_step: steps done already; the batches after them are the same as without a break.
    The order is that of `random.Random(epoch)`: the program's own random numbers stay as they are.
    """
    if groups_per_step < 1 or num_epochs < 1 or initial_step < 0:
        raise UserError(
            f"groups_per_step={groups_per_step} and num_epochs={num_epochs} must be at least 1, and "
            f"initial_step={initial_step} at least 0"
        )
    if len(dataset) == 0:
        raise UserError("the dataset has no items")
    num_epoch_steps = -(-len(dataset) // groups_per_step)
    num_steps = num_epoch_steps * num_epochs
    with progress_bar("train" if use_tqdm else None, num_steps, unit="batch") as bar:
        bar.update(min(initial_step, num_steps))
        for epoch in range(initial_step // num_epoch_steps, num_epochs):
            order = list(range(len(dataset)))
            random.Random(epoch).shuffle(order)
            first = max(0, initial_step - epoch * num_epoch_steps)
            for epoch_step in range(first, num_epoch_steps):
                part = order[epoch_step * groups_per_step : (epoch_step + 1) * groups_per_step]
                step = epoch * num_epoch_steps + epoch_step
                yield DatasetBatch([dataset[index] for index in part], step, epoch, epoch_step)
                bar.update(1)
