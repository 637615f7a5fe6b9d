"""A run of this process that is open: its model, what trains it, its folder, and where it stood.

Knows: in which order they are opened, how a checkpoint is taken up.  Knows not: where groups come from, what a step is.
Invariant: a model that cannot be opened leaves no folder behind that stands in the next one's way.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ludus.api.local import LocalModel, open_local
from ludus.api.saved_weights import SavedWeights
from ludus.api.teachers import open_teacher
from ludus.config import Config
from ludus.engines.base import Engine
from ludus.episodes.names import DEFAULT_MODEL, ModelNames
from ludus.episodes.recorder import Recorder
from ludus.errors import UserError
from ludus.loop.checkpoint import Checkpoint, RunProgress, set_aside_later
from ludus.processes.files import free_bytes
from ludus.rollout.mixture import Source
from ludus.runs.store import RunStore
from ludus.runs.trackers.select import check_trackers, open_trackers
from ludus.teachers.teacher import Teacher

if TYPE_CHECKING:
    from ludus.trainer.sharded import ShardedTrainer
    from ludus.trainer.step import ModelTrainer

logger = logging.getLogger(__name__)
GIB = 2**30
_THREADS = "train/threads"
_MOST_COUNTED = 10
"""Checkpoints that stay, as far as they are thought of at the start; whoever keeps all of them deletes some."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """What a step works with (see `StepComponents`)."""

    local: LocalModel
    learner: ModelTrainer | ShardedTrainer
    store: RunStore
    teacher: Teacher | None
    start: RunProgress
    """Where it stood when it was opened."""

    @property
    def engine(self) -> Engine:
        return self.local.engine


def compute_as_in(record: RunStore, step: int) -> None:
    """With as many threads as a run did in `step`, or the next one that is measured."""
    from ludus.models.threads import compute_as

    known = next((each[_THREADS] for later, each in record.metrics() if later >= step and _THREADS in each), None)
    if known is not None:
        compute_as(int(known))


def _check_disk(config: Config, learner: ModelTrainer | ShardedTrainer) -> None:
    """Raises UserError if not even one checkpoint would fit on the run's disk, which would be said hours later."""
    trained = sum(parameter.numel() for parameter in learner.model.trainable.values())
    # masters and two moments; and the model as it is saved
    state = trained * (4 + (8 if config.trainer.optimizer.moments == "fp32" else 4))
    saved = sum(parameter.nbytes for parameter in learner.model.trainable.values())
    free, once = free_bytes(config.folder), state + saved
    most = state * (min(config.checkpoint.keep, _MOST_COUNTED) + 1) + saved
    if free < once:
        raise UserError(
            f"a checkpoint and the trained model take {once / GIB:.1f} GiB, and {config.run_root} has {free / GIB:.1f} "
            "free: free some space, or set run_root to a folder of a larger disk"
        )
    if free < most:
        logger.warning(
            "the %d checkpoints that stay, one that is being written and the trained model take %.1f GiB, and %s has "
            "%.1f free; checkpoint.keep=1 takes less",
            config.checkpoint.keep,
            most / GIB,
            config.run_root,
            free / GIB,
        )


@asynccontextmanager
async def open_run(
    config: Config,
    found: Checkpoint | None,
    *,
    goes_on: bool,
    text: str,
    sources: Sequence[Source] = (),
    model_name: str = DEFAULT_MODEL,
    base_name: str | None = None,
) -> AsyncIterator[OpenRun]:
    """The run of `config` with the weights of a checkpoint, which answer, until the block ends.

    found: taken up with optimizer and all, or with its weights alone where it has no more. None: the model as it is.
    goes_on: its folder is there.  text: the configuration as the folder keeps it.  sources: of the rows it plays.
    model_name: what answers are said to come from.  base_name: what requests call its base, besides `model.path`.
    """
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(open_local(config))
        others = SavedWeights(config, local, bases=() if base_name is None else (base_name,))
        stack.push_async_callback(others.close)
        names = ModelNames(model_name, (config.name,), config.model.served_names)
        local = replace(local, recorder=Recorder(local.engine, local.text, names=names, others=others))
        learner = await stack.enter_async_context(local.learner(config))
        teacher = await stack.enter_async_context(open_teacher(config, local, sources))
        check_trackers(config.trackers)
        start = RunProgress() if found is None else found.progress
        _check_disk(config, learner)
        if goes_on:
            store = stack.enter_context(RunStore.go_on(config.folder, text, step=start.step))
            set_aside_later(store.checkpoints, start.step)
            if store.num_episodes < start.num_episodes:
                said = "run.db holds %d of the %d episodes that the checkpoint of step %d knew of; the others are lost"
                logger.warning(said, store.num_episodes, start.num_episodes, start.step)
            if store.last_step > start.step:
                said = "the run had come to step %d; what it learned after step %d is learned again"
                logger.warning(said, store.last_step, start.step)
            compute_as_in(store, start.step)
        else:
            store = stack.enter_context(RunStore.create(config.run_root, config.name, text))
        stack.enter_context(open_trackers(config.trackers, config.name, store.folder))
        if found is not None and found.has_trainer:
            learner.load(found.trainer_folder)
        elif found is not None:
            learner.take_weights(found.folder / "model")
        if start.step > 0:
            await local.engine.publish(start.step, learner.publish())
        yield OpenRun(local, learner, store, teacher, start)
