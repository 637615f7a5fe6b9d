"""Iterates over a data set in batches and epochs, in an order that depends only on the epoch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ludus.compat.art.bars import progress_bar
from ludus.errors import UserError

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class DatasetBatch(Generic[ItemT]):
    """The items of one step."""

    items: list[ItemT]
    step: int
    """Index of the step since the beginning of the first epoch."""
    epoch: int
    epoch_step: int
    """Index of the step since the beginning of this epoch."""

    def __iter__(self) -> Iterator[Any]:
        """Items, epoch, step and step of the epoch, for loops that unpack a batch."""
        return iter((self.items, self.epoch, self.step, self.epoch_step))


def iterate_dataset(
    dataset: Sequence[ItemT],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = True,
) -> Iterator[DatasetBatch[ItemT]]:
    """Batches of `groups_per_step` items, shuffled in every epoch; the last of an epoch may be smaller.

    initial_step: number of steps already done; later batches are the same as without an interruption.
    The order is that of `random.Random(epoch)`, so that the global random state is not used.
    """
    if groups_per_step < 1 or num_epochs < 1 or initial_step < 0:
        raise UserError(
            f"groups_per_step={groups_per_step} and num_epochs={num_epochs} must be at least 1, and "
            f"initial_step={initial_step} at least 0"
        )
    if len(dataset) == 0:
        raise UserError("the dataset has no items")
    num_steps = -(-len(dataset) // groups_per_step) * num_epochs
    with progress_bar("train" if use_tqdm else None, num_steps, unit="batch") as bar:
        bar.update(min(initial_step, num_steps))
        for batch in epoch_parts(dataset, groups_per_step, num_epochs, initial_step, lambda epoch: epoch):
            yield batch
            bar.update(1)


def epoch_parts(
    items: Sequence[ItemT], size: int, epochs: int, initial_step: int, seed: Callable[[int], int | str | None]
) -> Iterator[DatasetBatch[ItemT]]:
    """Parts of `size` items, from `initial_step` on; the last of an epoch may be smaller.

    seed: returns the seed of an epoch's order. None: the items are not shuffled.
    """
    num_epoch_steps = -(-len(items) // size)
    for epoch in range(initial_step // num_epoch_steps, epochs):
        order = list(range(len(items)))
        if seed(epoch) is not None:
            random.Random(seed(epoch)).shuffle(order)
        for epoch_step in range(max(0, initial_step - epoch * num_epoch_steps), num_epoch_steps):
            part = [items[index] for index in order[epoch_step * size : (epoch_step + 1) * size]]
            yield DatasetBatch(part, epoch * num_epoch_steps + epoch_step, epoch, epoch_step)
