"""Supervised training of a model on a file or a list of trajectories, in chunks with a common schedule.

Knows: trajectories, files of conversations, schedules.  Knows not: backends, tensors.
Invariant: trajectories and learning rate of every batch depend only on the arguments, so a run resumed after some
chunks equals one without an interruption.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.compat.art.backends import TrainSFTConfig
from ludus.compat.art.bars import progress_bar
from ludus.compat.art.dataset import epoch_parts
from ludus.compat.art.schedule import Method, create_lr_schedule
from ludus.compat.art.trainable import TrainableModel
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.importing.files import read_text
from ludus.compat.members import takes
from ludus.errors import UserError
from ludus.runs.metrics import Metrics

SHUFFLED = 10_000  # ART's buffer size; here the whole file is shuffled


@dataclass(frozen=True, slots=True)
class SFTDatasetChunk:
    """The arguments of one call of `train_sft`."""

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    step: int
    """Number of batches since the beginning of the first epoch."""
    epoch: int
    epoch_step: int
    """Number of batches since the beginning of this epoch."""


def iterate_file(
    file_path: Path | str,
    epochs: int = 1,
    shuffle_buffer_size: int = SHUFFLED,
    seed: int = 42,
    initial_skip: int = 0,
    *,
    shuffle: bool = True,
) -> Iterator[Trajectory]:
    """The conversations of a JSONL file, once for each epoch: lines with `messages`, and optionally `tools`.

    shuffle: shuffle the whole file in each epoch, whatever the buffer size, except with `shuffle_buffer_size=1`.
    initial_skip: number of conversations to skip, for a resumed run.
    Raises UserError, with the line number, for a line that is no conversation.
    """
    order = _order(seed, shuffle and shuffle_buffer_size > 1)
    for part in epoch_parts(_read(Path(file_path)), 1, epochs, initial_skip, order):
        yield part.items[0].model_copy(deep=True)


def create_sft_dataset_iterator(
    trajectories: Sequence[Trajectory],
    chunk_size: int = 10,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Method = "linear",
    warmup_ratio: float = 0.1,
    shuffle: bool = True,
    seed: int = 42,
    initial_step: int = 0,
    show_progress: bool = True,
    *,
    final_step: int | None = None,
) -> Iterator[SFTDatasetChunk]:
    """Chunks of `chunk_size` batches, with one schedule over the batches of all epochs.

    initial_step: number of batches already trained.  show_progress: show a bar in a terminal or notebook.
    final_step: stop before this batch. None: at the end.
    """
    if not trajectories or min(chunk_size, epochs, batch_size) < 1:
        raise UserError(
            f"{len(trajectories)} trajectories in chunks of chunk_size={chunk_size}, epochs={epochs} and "
            f"batch_size={batch_size} make nothing to train on; each must be at least 1"
        )
    num_batches = -(-len(trajectories) // batch_size)
    num_all = num_batches * epochs
    rates = create_lr_schedule(num_all, peak_lr, schedule_type, int(warmup_ratio * num_all))
    num_wanted = num_all if final_step is None else min(final_step, num_all)
    with progress_bar("train" if show_progress else None, num_all, unit="batch") as bar:
        bar.update(min(initial_step, num_all))
        for part in epoch_parts(trajectories, chunk_size * batch_size, epochs, 0, _order(seed, shuffle)):
            first = part.epoch * num_batches + part.epoch_step * chunk_size
            begin, end = max(first, initial_step), min(first + -(-len(part.items) // batch_size), num_wanted)
            if begin >= end:
                continue
            items = part.items[(begin - first) * batch_size : (end - first) * batch_size]
            config = TrainSFTConfig(learning_rate=tuple(rates[begin:end]), batch_size=batch_size)
            yield SFTDatasetChunk(items, config, begin, part.epoch, begin - part.epoch * num_batches)
            bar.update(end - begin)


@takes("art", "utils.sft.train_sft_from_file")
async def train_sft_from_file(
    model: TrainableModel[object],
    file_path: Path | str,
    epochs: int = 1,
    batch_size: int = 2,
    peak_lr: float = 2e-4,
    schedule_type: Method = "linear",
    warmup_ratio: float = 0.1,
    initial_step: int = 0,
    final_step: int | None = None,
    _config: Mapping[str, Any] | None = None,
    verbose: bool = False,
    shuffle_buffer_size: int = SHUFFLED,
    *,
    shuffle: bool = True,
    **options: Any,
) -> list[Metrics]:
    """Train on all conversations of a JSONL file; returns the metrics of each chunk, which is one step of the model.

    shuffle_buffer_size: 1: keep the file's order.  options: chunk_size, seed and show_progress of
    `create_sft_dataset_iterator`, as are the other arguments.
    """
    del _config, verbose
    options |= {"epochs": epochs, "batch_size": batch_size, "peak_lr": peak_lr, "schedule_type": schedule_type}
    options |= {"warmup_ratio": warmup_ratio, "initial_step": initial_step, "final_step": final_step}
    options["shuffle"] = shuffle and shuffle_buffer_size > 1
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
