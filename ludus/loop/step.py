"""One training step: makes a batch of groups, trains on it, publishes the weights to the engine, records the metrics.

Knows: the order within a step.  Knows not: where the groups come from, what happens between two steps.
Invariants: the ledger of the step balances before a weight changes; when the step returns, the new weights sample;
an engine on the trainer's card sleeps whenever the trainer computes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from ludus.algorithms.base import NOTHING, Memory
from ludus.algorithms.measured import Measured, TokenNumbers
from ludus.algorithms.memory import adapted, remember
from ludus.algorithms.pack import Batch
from ludus.algorithms.resolve import algorithm_of
from ludus.algorithms.settings import AlgorithmSettings
from ludus.engines.base import Engine, WeightSource
from ludus.episodes.ledger import Ledger
from ludus.errors import LudusError, UserError
from ludus.loop.batch import BatchRules, build_batch, by_turn_id, places_to_measure, rows_to_measure
from ludus.loop.measure import (
    TrainingClock,
    batch_metrics,
    demonstration_metrics,
    ledger_metrics,
    memory_metrics,
    replay_metrics,
    rollout_metrics,
    teacher_metrics,
)
from ludus.loop.trainer_thread import TrainerThread
from ludus.rollout.groups import TakenGroups
from ludus.runs.metrics import Metrics
from ludus.runs.store import RunStore
from ludus.runs.tokens import TokenColumns
from ludus.teachers.teacher import Teacher

logger = logging.getLogger(__name__)

OnStage = Callable[[Literal["batch", "train", "publish"], Ledger, Memory], None]
"""Called as each part of a step ends, with the part's name, the step's ledger, and the algorithm's memory so far."""


class Learner(Protocol):
    """The trainer, as a step sees it."""

    def measure(self, batch: Batch, names: Collection[str]) -> Mapping[int, TokenNumbers]: ...

    def train_batch(
        self,
        batch: Batch,
        algorithm: AlgorithmSettings | None = None,
        *,
        on_tokens: Callable[[TokenColumns], None] | None = None,
    ) -> Metrics: ...

    def publish(self) -> WeightSource: ...

    def save(self, folder: Path) -> None: ...


class StepComponents(Protocol):
    """The parts of a run that a step needs."""

    @property
    def engine(self) -> Engine: ...

    @property
    def learner(self) -> Learner: ...

    @property
    def store(self) -> RunStore: ...

    @property
    def teacher(self) -> Teacher | None:
        """None: the algorithm has no teacher."""


@asynccontextmanager
async def trainers_turn(
    engine: Engine, measure: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
) -> AsyncIterator[None]:
    """Within the block the trainer may compute: an engine that shares its card is paused, and keeps its calls. What is
    published within the block samples after it. Other engines go on all the time.

    measure: counts the seconds that it takes.
    """
    if not engine.shares_card:
        yield
        return
    try:
        with measure("sleep"):
            await engine.pause()
        yield
    except Exception:
        with suppress(LudusError):  # it samples with the weights that it has; why the block failed tells more
            await engine.resume()
        raise
    with measure("wake"):
        await engine.resume()


@dataclass(frozen=True, slots=True)
class TrainStepResult:
    """The result of a step."""

    step: int
    """Steps trained; also the version of the weights."""
    metrics: Metrics
    ledger: Ledger
    """Of everything that was taken for the step."""


async def train_step(
    taken: TakenGroups,
    components: StepComponents,
    *,
    rules: BatchRules,
    version: int,
    clock: TrainingClock,
    work: TrainerThread,
    memory: Memory = NOTHING,
    record_tokens: bool = True,
    on_stage: OnStage = lambda _stage, _ledger, _memory: None,
) -> TrainStepResult:
    """Train weights `version` on what was taken, and publish the result as the next version.

    memory: what the algorithm remembers of earlier steps.
    record_tokens: write to the run store what the loss used of each token.
    on_stage: called as each part of the step ends. Between `batch` and `train` the master weights are between two
    versions; once `train` has ended they are those of the next version, even if publishing then fails.
    """
    step = version + 1
    gaps = await _teacher_gaps(taken, components, rules=rules, version=version, clock=clock)
    kept: list[TokenColumns] = []
    async with trainers_turn(components.engine, clock.measure):
        measured = await _measured(taken, components, gaps, rules=rules, version=version, clock=clock, work=work)
        with clock.measure("batch"):
            built = build_batch(taken, rules, version=version, measured=measured, memory=memory)
            built.ledger.check()
        on_stage("batch", built.ledger, memory)
        with clock.measure("train"):
            # a batch in which every token is masked changes no weight, but counts in the learning rate's schedule
            is_skipped = not built.batch.num_trained
            algorithm = adapted(rules.algorithm, memory)
            on_tokens = kept.append if record_tokens and not is_skipped else None
            train = components.learner.train_batch
            train_metrics = await work.run(train, built.batch, algorithm, on_tokens=on_tokens)
            if is_skipped:
                train_metrics = {**train_metrics, "train/skipped_steps": 1.0}
                why = dict(built.ledger.masked)
                logger.warning("no token of this step can be trained; the ledger says why: %s", why)
        known = remember(rules.algorithm, built.memory, train_metrics)
        on_stage("train", built.ledger, known)
        with clock.measure("publish"):
            await asyncio.gather(  # the record is written while the weights are sent
                components.engine.publish(step, components.learner.publish()),
                *(asyncio.to_thread(components.store.add_tokens, step, each, built.turns) for each in kept),
            )
    on_stage("publish", built.ledger, known)
    components.store.add_credit(step, built.credit)
    metrics = {
        **rollout_metrics(taken),
        **replay_metrics(taken, train_metrics, version=version),
        **demonstration_metrics(train_metrics),
        **train_metrics,
        **batch_metrics(built, has_advantages=rules.algorithm.advantage.kind != "none"),
        **teacher_metrics(measured),
        **ledger_metrics(built.ledger),
        **clock.end_step(components.engine.stats(), num_row_tokens=built.batch.num_row_tokens * rules.algorithm.epochs),
        **memory_metrics(),
    }
    components.store.add_metrics(step, metrics)
    return TrainStepResult(step, metrics, built.ledger)


async def _teacher_gaps(
    taken: TakenGroups, components: StepComponents, *, rules: BatchRules, version: int, clock: TrainingClock
) -> Mapping[str, tuple[float, ...]]:
    """What the teacher, which may be the run's own engine, says of each token, by turn. Empty: it is not asked."""
    if not algorithm_of(rules.algorithm).needs.teacher:
        return {}
    if components.teacher is None:
        raise UserError("algorithm.distillation needs somebody who teaches: set teacher.kind")
    with clock.measure("teacher"):
        episodes = [episode for group in taken.trained for episode in group.episodes]
        chosen = places_to_measure(taken, rules, version=version)
        return await components.teacher.gaps(episodes, chosen, version=version)


async def _measured(
    taken: TakenGroups,
    components: StepComponents,
    gaps: Mapping[str, tuple[float, ...]],
    *,
    rules: BatchRules,
    version: int,
    clock: TrainingClock,
    work: TrainerThread,
) -> Measured:
    """What the algorithm asks to have measured of each token before credit is assigned, under weights `version`.

    gaps: what the teacher said of them.
    """
    needs = algorithm_of(rules.algorithm).needs
    measured: Measured = {}
    if needs.measured:
        with clock.measure("measure"):
            rows = rows_to_measure(taken, rules, version=version)
            measured = by_turn_id(taken, await work.run(components.learner.measure, rows, needs.measured))
    if needs.teacher:
        nothing = TokenNumbers()
        measured = {turn: replace(measured.get(turn, nothing), teacher_gaps=each) for turn, each in gaps.items()}
    return measured
