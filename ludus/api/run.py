"""Opens a run: its model, the trainer, its folder, and the checkpoint it goes on from.

Knows: the order in which they are opened, how a checkpoint is loaded.  Knows not: where groups come from, what a step
is.
Invariant: if a run cannot be opened, no folder is left behind that would be in the way of the next try.
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
from ludus.loop.step import trainers_turn
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
"""At most so many kept checkpoints are counted when free disk space is checked; a run that keeps more is expected to
have some deleted."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The parts of an open run; satisfies `StepComponents`."""

    local: LocalModel
    learner: ModelTrainer | ShardedTrainer
    store: RunStore
    teacher: Teacher | None
    start: RunProgress
    """The progress with which it was opened."""

    @property
    def engine(self) -> Engine:
        return self.local.engine


def compute_as_in(record: RunStore, step: int) -> None:
    """Compute with as many threads as a run did in `step`, or in the next step whose metrics tell."""
    from ludus.models.threads import compute_as

    known = next((each[_THREADS] for later, each in record.metrics() if later >= step and _THREADS in each), None)
    if known is not None:
        compute_as(int(known))


def _check_disk(config: Config, learner: ModelTrainer | ShardedTrainer) -> None:
    """Raises UserError if the run's disk has no room for even one checkpoint, rather than hours later."""
    trained = sum(parameter.numel() for parameter in learner.model.trainable.values())
    # master weights and two moments; and the saved model
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
    """The run of `config`, open until the block ends; its engine answers with the checkpoint's weights.

    found: the checkpoint, loaded with its optimizer state if it has one. None: the run begins with the model's weights.
    goes_on: the run's folder exists.  text: the configuration to keep in the folder.  sources: of the rows it plays.
    model_name: the model's name in answers.  base_name: a further name for its base in requests, besides `model.path`.
    """
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(open_local(config))
        others = SavedWeights(config, local, bases=() if base_name is None else (base_name,))
        stack.push_async_callback(others.close)
        names = ModelNames(model_name, (config.name,), config.model.served_names)
        local = replace(local, recorder=Recorder(local.engine, local.text, names=names, others=others))
        async with trainers_turn(local.engine):
            learner = await stack.enter_async_context(local.learner(config))
        teacher = await stack.enter_async_context(open_teacher(config, local, sources))
        check_trackers(config.trackers)
        start = RunProgress() if found is None else found.progress
        _check_disk(config, learner)
        if goes_on:
            with RunStore.look(config.folder, checks=False) as record:  # later steps are void when it goes on
                compute_as_in(record, start.step)
            store = stack.enter_context(RunStore.go_on(config.folder, text, step=start.step))
            set_aside_later(store.checkpoints, start.step)
            if store.num_episodes < start.num_episodes:
                said = "run.db holds %d of the %d episodes that the checkpoint of step %d knew of; the others are lost"
                logger.warning(said, store.num_episodes, start.num_episodes, start.step)
            if store.last_step > start.step:
                said = "the run had come to step %d; what it learned after step %d is learned again"
                logger.warning(said, store.last_step, start.step)
        else:
            store = stack.enter_context(RunStore.create(config.run_root, config.name, text))
        stack.enter_context(open_trackers(config.trackers, config.name, store.folder))
        if found is not None:
            async with trainers_turn(local.engine):
                if found.has_trainer:
                    learner.load(found.trainer_folder)
                else:
                    learner.take_weights(found.folder / "model")
                if start.step > 0:
                    await local.engine.publish(start.step, learner.publish())
        yield OpenRun(local, learner, store, teacher, start)
