"""Supervised training of a model on a file or a list of trajectories, in chunks with one schedule over all of them.

Knows: trajectories, files of conversations, schedules.  Knows not: backends, tensors.
Invariant: trajectory and learning rate of every batch depend on the arguments alone, so a run that goes on after some
chunks is the same as one without a break.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.compat.art.backends import TrainSFTConfig
from ludus.compat.art.dataset import epoch_parts
from ludus.compat.art.schedule import Method, create_lr_schedule
from ludus.compat.art.trainable import TrainableModel
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.importing.files import read_text
from ludus.errors import UserError
from ludus.runs.metrics import Metrics


@dataclass(frozen=True, slots=True)
class SFTDatasetChunk:
    """What one call of `train_sft` is given."""

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    step: int
    """Chunks since the first epoch began."""
    epoch: int
    epoch_step: int
    """Chunks since this epoch began."""


def iterate_file(
    file_path: Path | str, epochs: int = 1, shuffle: bool = True, seed: int = 42, initial_skip: int = 0
) -> Iterator[Trajectory]:
    """The conversations of a JSONL file, once for each epoch: lines with `messages`, and `tools` if there are any.

    shuffle: another order in each epoch.  initial_skip: so many are left out, for a run that goes on.
    Raises UserError for a line that is no conversation, with its number.
    """
    for part in epoch_parts(_read(Path(file_path)), 1, epochs, initial_skip, _order(seed, shuffle)):
        yield part.items[0].model_copy(deep=True)


def create_sft_dataset_iterator(
    trajectories: Sequence[Trajectory],
    chunk_size: int = 10,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    *,
    schedule_type: Method = "linear",
    warmup_ratio: float = 0.1,
    shuffle: bool = True,
    seed: int = 42,
    initial_step: int = 0,
) -> Iterator[SFTDatasetChunk]:
    """Chunks of `chunk_size` batches, with one schedule over the batches of all epochs.

    initial_step: chunks trained already.
    """
    if not trajectories or min(chunk_size, epochs, batch_size) < 1:
        raise UserError(
            f"{len(trajectories)} trajectories in chunks of chunk_size={chunk_size}, epochs={epochs} and "
            f"batch_size={batch_size} make nothing to train on; each must be at least 1"
        )
    num_batches = -(-len(trajectories) // batch_size)
    warmup_steps = round(warmup_ratio * num_batches * epochs)
    rates = create_lr_schedule(num_batches * epochs, peak_lr, schedule_type, warmup_steps)
    for part in epoch_parts(trajectories, chunk_size * batch_size, epochs, initial_step, _order(seed, shuffle)):
        first = part.epoch * num_batches + part.epoch_step * chunk_size
        last = first + -(-len(part.items) // batch_size)
        config = TrainSFTConfig(learning_rate=tuple(rates[first:last]), batch_size=batch_size)
        yield SFTDatasetChunk(part.items, config, part.step, part.epoch, part.epoch_step)


async def train_sft_from_file(
    model: TrainableModel[object],
    file_path: Path | str,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    **options: Any,
) -> list[Metrics]:
    """Train on all conversations of a JSONL file; the metrics of each chunk, which is a step of the model each.

    options: schedule_type, warmup_ratio, chunk_size, shuffle, seed, initial_step, as for `create_sft_dataset_iterator`.
    """
    options |= {"epochs": epochs, "batch_size": batch_size, "peak_lr": peak_lr}
    chunks = create_sft_dataset_iterator(_read(Path(file_path)), **options)
    return [(await model.train_sft(chunk.trajectories, chunk.config)).metrics for chunk in chunks]


def _order(seed: int, shuffle: bool) -> Callable[[int], str | None]:
    return lambda epoch: f"{seed}/{epoch}" if shuffle else None


def _read(path: Path) -> list[Trajectory]:
    found = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            found.append(Trajectory(messages_and_choices=row["messages"], tools=row.get("tools")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"line {number} of {str(path)!r} is no conversation ({what:.200}); allowed: JSON objects with "
                "'messages', and 'tools' if there are any"
            ) from None
    if not found:
        raise UserError(f"{str(path)!r} holds no conversation")
    return found
