"""The asynchronous training loop, from the first group to the last checkpoint.

    rollouts ──groups──▶ batch + ledger ──▶ trainer ──▶ weights published ──▶ rollouts go on
                                                            └▶ metrics · evaluation · checkpoint

Knows: the order of things.  Knows not: how any of them is done.
Invariants: version n is the weights after step n; the ledger of every step balances before a weight changes;
with `max_head_offpolicyness=0` a run is a function of its configuration, its data and its seed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from ludus.algorithms.base import Memory
from ludus.algorithms.resolve import algorithm_of
from ludus.engines.base import Engine
from ludus.episodes.ledger import Ledger
from ludus.loop.batch import BatchRules, account_unused, can_teach, make_group_filter, token_bounds
from ludus.loop.checkpoint import RunProgress, save_checkpoint, save_whole, update_checkpoint
from ludus.loop.commit import own_commit
from ludus.loop.evaluate import EvalPlan, Evaluation, account_evaluated, evaluate
from ludus.loop.interrupt import Interrupts
from ludus.loop.measure import TrainingClock
from ludus.loop.memory import peak_rss_mb
from ludus.loop.observer import Observer, RunSummary
from ludus.loop.recorded import batch_record
from ludus.loop.settings import CheckpointSettings, EvalSettings
from ludus.loop.step import Learner, train_step
from ludus.loop.trainer_thread import TrainerThread
from ludus.processes.checksums import checksums
from ludus.processes.gather import first_of
from ludus.rollout.curriculum import Curriculum
from ludus.rollout.groups import GroupSource, TakenGroups
from ludus.rollout.mixture import Source
from ludus.rollout.pool import Demonstrate, PlayEpisode, RolloutPool
from ludus.rollout.replay import ReplayBuffer, ReplayState
from ludus.rollout.settings import CurriculumSettings, RolloutSettings
from ludus.rollout.tasks import GroupStream
from ludus.runs.store import RunStore
from ludus.teachers.teacher import Teacher
from ludus.types import Episode

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True)
class RunComponents:
    """The built parts of a run."""

    engine: Engine
    learner: Learner
    play: PlayEpisode | None
    """Plays one episode; it is in the run store before it is returned. None: no rows are played here."""
    store: RunStore
    observer: Observer
    interrupts: Interrupts
    save_model: Callable[[Path], object]
    teacher: Teacher | None = None
    """Scores sampled tokens, for an algorithm that has a teacher. None: it has none."""
    demonstrate: Demonstrate | None = None
    """Gives the demonstrations of a group's row. None: there are none."""
    arrivals: GroupSource | None = None
    """Where groups come from if the run does not play rows itself: sessions over HTTP, or a record. None: it plays."""


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """What a run does, and when it ends."""

    sources: Sequence[Source]
    seed: int
    shuffle: bool
    batch_size: int
    n_samples: int
    rollout: RolloutSettings
    rules: BatchRules
    evaluation: EvalPlan | None
    """None: nothing is held out."""
    eval_settings: EvalSettings
    checkpoint: CheckpointSettings
    total_steps: int | None
    """None: no limit."""
    total_seconds: float | None
    """Of training, evaluations not counted. None: no limit."""
    steps_key: str = "total_train_steps"
    """The key of the configuration that `total_steps` comes from."""
    curriculum: CurriculumSettings | None = None
    """None: no row is ever skipped."""
    record_tokens: bool = True
    """Write to the run store what the loss used of every trained token."""


@dataclass(slots=True)
class _RunState:
    """What changes while a run goes on; everything else is in the components and the plan."""

    progress: RunProgress
    clock: TrainingClock
    ledger: Ledger
    replay: ReplayBuffer | None
    """None: no group is trained on twice."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    """The last evaluation of this process, and the step it was of."""
    evaluated_step: int | None = None
    is_torn: bool = False
    """A step failed while it trained: the master weights are between two versions, and must not be saved."""
    saved_at: float = field(default_factory=monotonic)
    """When the last checkpoint was saved; before the first one, when this process began."""


async def train(components: RunComponents, plan: TrainPlan, start: RunProgress) -> RunSummary:
    """Train from `start` until the plan ends or an interrupt asks to leave; the run is saved either way.

    Raises what stopped the rollouts or a step. The run is saved then too, unless a step failed while it trained: it can
    be resumed from its last checkpoint.
    """
    clock = TrainingClock(components.engine.stats(), start.train_seconds, start.eval_seconds)
    run = _RunState(start, clock, start.ledger, _replay_buffer(components.store, plan, start.replay))
    components.observer.on_start(plan.total_steps, plan.total_seconds)
    pool = _rows_pool(components, plan, start) if components.arrivals is None else components.arrivals
    _reserve(run, pool)
    with TrainerThread("trainer") as work, _accounted(components, run, pool):
        async with pool:
            try:
                if plan.eval_settings.before and start.step == 0:
                    await _evaluate(components, plan, run)
                    run.progress = replace(start, eval_before=run.evaluation.metrics if run.evaluation else {})
                if components.arrivals is None:
                    components.observer.on_phase(
                        f"playing the first rows: {plan.batch_size} x {plan.n_samples} episodes"
                    )
                while (stopped_by := _end(components, plan, run)) is None:
                    with run.clock.measure("rollout"):
                        taken = await _unless_interrupted(_take(components, plan, run, pool), components.interrupts)
                    if taken is None:
                        continue
                    await _step(components, plan, run, work, pool, taken)
                    if _is_due(plan.eval_settings.every_steps, run):
                        pool.pause_admission()
                        await _evaluate(components, plan, run)
                        pool.resume_admission()
                    if _end(components, plan, run) is None:
                        _reserve(run, pool)
                        pool.advance(run.progress.step)
                    if _is_save_due(plan.checkpoint, run):
                        await _save(components, plan, run, work, pool)
            except Exception:  # whatever it was, a bug of ours included, what was learned so far is saved
                if not run.is_torn:
                    await _save(components, plan, run, work, pool)
                raise
            pool.pause_admission()
            await _save(components, plan, run, work, pool)
        model = None if stopped_by == INTERRUPT else components.store.folder / "model"
        if model is not None:
            components.observer.on_phase("saving the model")
            await work.run(save_whole, model, components.save_model)
            if plan.eval_settings.after and run.evaluated_step != run.progress.step:
                await _evaluate(components, plan, run)
    run.ledger.check()
    return _conclude(components, run, stopped_by, model=model)


async def _take(components: RunComponents, plan: TrainPlan, run: _RunState, pool: GroupSource) -> TakenGroups:
    """The groups of the next batch."""
    taken = await pool.take(plan.batch_size)
    if run.replay is None:
        return taken
    return replace(taken, replayed=run.replay.draw(run.progress.step, components.store.episode))


def _reserve(run: _RunState, pool: GroupSource) -> None:
    """Keep places of the next batch free for replayed groups."""
    if run.replay is not None:
        pool.reserve(run.replay.num_places)


async def _step(
    components: RunComponents,
    plan: TrainPlan,
    run: _RunState,
    work: TrainerThread,
    pool: GroupSource,
    taken: TakenGroups,
) -> None:
    """One step, reported to the observer. It counts as trained as soon as the master weights have changed."""
    version = run.progress.step

    def on_stage(stage: str, ledger: Ledger, memory: Memory) -> None:
        if stage == "batch":
            components.store.add_batch(version + 1, batch_record(taken))
        run.is_torn = stage == "batch"
        if stage == "train":
            if run.replay is not None:
                run.replay.add(taken.groups, version + 1)
            kept = None if run.replay is None else run.replay.state
            run.progress = replace(run.progress, step=version + 1, memory=memory, replay=kept)
            run.ledger = run.ledger + ledger

    try:
        stepped = await train_step(
            taken,
            components,
            rules=plan.rules,
            version=version,
            clock=run.clock,
            work=work,
            memory=run.progress.memory,
            record_tokens=plan.record_tokens,
            on_stage=on_stage,
        )
    except Exception:
        if run.progress.step == version:
            pool.give_back(taken)
        raise
    run.metrics = stepped.metrics
    components.observer.on_step(stepped.step, stepped.metrics)
    _report_failures(components)


async def _evaluate(components: RunComponents, plan: TrainPlan, run: _RunState) -> None:
    """Play the held-out rows. If an interrupt cuts it short there is no result, but the ledger counts the tokens."""
    assert plan.evaluation is not None and components.play is not None, "an evaluation is due, and nothing is held out"
    step = run.progress.step
    num_rows = sum(len(source.rows) for source in plan.evaluation.sources)
    components.observer.on_phase(f"playing held-out rows: {num_rows} x {plan.evaluation.n_samples} episodes")
    played: list[Episode] = []
    evaluation = evaluate(components.play, plan.evaluation, step=step, on_episode=played.append)
    try:
        with run.clock.evaluating():
            found = await _unless_interrupted(evaluation, components.interrupts)
    finally:
        run.ledger = run.ledger + account_evaluated(played)
    run.clock.rebase(components.engine.stats())
    if found is None:
        return
    run.evaluation, run.evaluated_step = found, step
    metrics = {**found.metrics, "time/eval_s": run.clock.last_eval_s}
    components.store.add_metrics(step, metrics)
    components.observer.on_eval(step, metrics)
    _report_failures(components)


def _report_failures(components: RunComponents) -> None:
    if failures := components.store.failures():
        components.observer.on_failures(failures)


async def _save(
    components: RunComponents, plan: TrainPlan, run: _RunState, work: TrainerThread, pool: GroupSource
) -> None:
    """Save a checkpoint from which the run can be resumed with the same groups."""
    cursor = pool.cursor
    run.progress = replace(
        run.progress,
        next_ordinal=cursor.next_ordinal,
        unconsumed=cursor.unconsumed,
        curriculum=cursor.curriculum,
        train_seconds=run.clock.train_seconds,
        eval_seconds=run.clock.eval_seconds,
        ledger=run.ledger,
        num_episodes=components.store.num_episodes,
    )
    with run.clock.measure("checkpoint"):
        how = {"save_trainer": components.learner.save, "keep": plan.checkpoint.keep}
        await work.run(save_checkpoint, components.store.checkpoints, run.progress, **how)
    run.saved_at = monotonic()


@contextmanager
def _accounted(components: RunComponents, run: _RunState, pool: GroupSource) -> Iterator[None]:
    """However the block is left, the tokens that no step took are added to the ledger, and to that of the last step's
    checkpoint if there is one."""
    try:
        yield
    finally:
        run.ledger = run.ledger + account_unused(pool.drain_nowait())
        num = components.store.num_episodes
        counted = replace(run.progress, ledger=run.ledger, num_episodes=num, num_accounted=num)
        last = replace(counted, eval_seconds=run.clock.eval_seconds)
        update_checkpoint(components.store.checkpoints, last)


async def _unless_interrupted(awaited: Coroutine[Any, Any, ResultT], interrupts: Interrupts) -> ResultT | None:
    """The result of `awaited`. None: an interrupt came first, and `awaited` was cancelled."""
    return await first_of(awaited, interrupts.wait())


def _rows_pool(components: RunComponents, plan: TrainPlan, start: RunProgress) -> RolloutPool:
    assert components.play is not None, "rows are played"
    return RolloutPool(
        components.play,
        GroupStream(
            plan.sources,
            seed=plan.seed,
            shuffle=plan.shuffle,
            next_ordinal=start.next_ordinal,
            first=start.unconsumed,
            curriculum=Curriculum(plan.curriculum, start.curriculum) if plan.curriculum is not None else None,
        ),
        plan.rollout,
        n_samples=plan.n_samples,
        batch_size=plan.batch_size,
        version=start.step,
        total_groups=None if plan.total_steps is None else plan.total_steps * plan.batch_size,
        group_filter=make_group_filter(plan.rules),
        bounds=token_bounds(plan.rules.algorithm),
        with_greedy=algorithm_of(plan.rules.algorithm).needs.greedy,
        demonstrate=components.demonstrate,
    )


def _replay_buffer(store: RunStore, plan: TrainPlan, state: ReplayState | None) -> ReplayBuffer | None:
    """None: nothing is replayed. state: of the buffer in the last checkpoint. None: there is none."""
    settings, teaches = plan.rollout.replay, partial(can_teach, plan.rules)
    if settings is None:
        return None
    if state is not None:
        there = tuple(group for group in state.groups if all(map(store.has_episode, group.episodes)))
        if num_lost := len(state.groups) - len(there):
            logger.warning("of %d groups to replay the run store has lost episodes; they are dropped", num_lost)
        state = ReplayState(there)
    return ReplayBuffer(settings, seed=plan.seed, batch_size=plan.batch_size, teaches=teaches, state=state)


def _end(components: RunComponents, plan: TrainPlan, run: _RunState) -> str | None:
    """The name of the limit that ends the run here. None: it goes on.

    A limit in seconds ends the run before a step that would exceed it if it took as long as the last one.
    """
    if components.interrupts.requested:
        return INTERRUPT
    if plan.total_steps is not None and run.progress.step >= plan.total_steps:
        return plan.steps_key
    if plan.total_seconds is not None and run.clock.train_seconds + run.clock.last_step_s >= plan.total_seconds:
        return "total_train_seconds"
    return None


def _is_due(every_steps: int | None, run: _RunState) -> bool:
    return every_steps is not None and run.progress.step % every_steps == 0


def _is_save_due(settings: CheckpointSettings, run: _RunState) -> bool:
    is_late = settings.every_seconds is not None and monotonic() - run.saved_at >= settings.every_seconds
    return is_late or _is_due(settings.every_steps, run)


def _conclude(components: RunComponents, run: _RunState, stopped_by: str, *, model: Path | None) -> RunSummary:
    """The run's summary, reported to the observer, and written to disk unless the run was only interrupted."""
    before = run.progress.eval_before
    after = run.evaluation.metrics if run.evaluation is not None and run.evaluated_step == run.progress.step else {}
    summary = RunSummary(
        run=str(components.store.folder),
        steps=run.progress.step,
        stopped_by=stopped_by,
        train_seconds=round(run.progress.train_seconds, 3),
        eval_seconds=round(run.clock.eval_seconds, 3),
        ledger=run.ledger,
        reward=run.metrics.get("rollout/reward"),
        success_before=before.get("eval/success"),
        success_after=after.get("eval/success"),
        reward_before=before.get("eval/reward"),
        reward_after=after.get("eval/reward"),
        peak_rss_mb=round(peak_rss_mb(), 1),
        model=str(model) if model is not None else None,
        model_files=checksums(model) if model is not None else {},
        signal=components.interrupts.signal if stopped_by == INTERRUPT else None,
        commit=own_commit(),
        metrics=run.metrics,
        failures=components.store.failures(),
    )
    if stopped_by != INTERRUPT:
        components.store.write_summary(summary.to_json())
    components.observer.on_end(summary)
    return summary
