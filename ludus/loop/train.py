"""The asynchronous training loop, told once, from the first group to the last checkpoint.

    rollouts ──groups──▶ batch + ledger ──▶ trainer ──▶ weights published ──▶ rollouts go on
                                                            └▶ metrics · evaluation · checkpoint

Knows: the order of things.  Knows not: how any of them is done.
Invariants: version n is what step n left behind; the ledger of every step balances before a weight changes;
with `max_head_offpolicyness=0` a run is a function of its configuration, its data and its seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ludus.engines.base import Engine
from ludus.episodes.ledger import Ledger
from ludus.errors import LudusError
from ludus.loop.batch import BatchRules, account_unused, group_judge
from ludus.loop.checkpoint import Progress, save_checkpoint, update_checkpoint
from ludus.loop.commit import own_commit
from ludus.loop.evaluate import EvalPlan, Evaluation, account_evaluated, evaluate
from ludus.loop.interrupt import Interrupts
from ludus.loop.measure import TrainingClock
from ludus.loop.memory import peak_rss_mb
from ludus.loop.observer import Observer, RunSummary
from ludus.loop.settings import CheckpointSettings, EvalSettings
from ludus.loop.step import Learner, train_step
from ludus.loop.work import WorkThread
from ludus.rollout.pool import GroupSource, Play, RolloutPool, Taken
from ludus.rollout.settings import RolloutSettings
from ludus.rollout.tasks import GroupStream, Row
from ludus.runs.store import RunStore
from ludus.types import Episode

ResultT = TypeVar("ResultT")

INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True)
class Parts:
    """The built parts of a run."""

    engine: Engine
    learner: Learner
    play: Play | None
    """Plays one episode, which is in the run store when it returns. None: nothing is played, sessions arrive."""
    store: RunStore
    observer: Observer
    interrupts: Interrupts
    save_model: Callable[[Path], object]
    arrivals: GroupSource | None = None
    """Groups of sessions that others play, in the run store when they are taken. None: the plan's rows are played."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does, and when it ends."""

    rows: Sequence[Row]
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
    """None: no limit by steps; likewise for seconds, of which evaluations take none."""
    total_seconds: float | None
    steps_key: str = "total_train_steps"
    """The key of the configuration that `total_steps` comes from."""


@dataclass(slots=True)
class _Run:
    """What changes while a run goes on."""

    progress: Progress
    clock: TrainingClock
    ledger: Ledger
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluation: Evaluation | None = None
    """The last one of this process."""
    evaluated_step: int | None = None
    is_torn: bool = False
    """A step broke off while it trained: the masters lie between two versions, of which none is to be saved."""


async def train(parts: Parts, plan: Plan, start: Progress) -> RunSummary:
    """Train from `start` until the plan ends or an interrupt asks to leave; the run is saved either way.

    Raises LudusError if the rollouts stopped by themselves, or if a step failed; after saving as well, unless the step
    broke off while it trained: the last checkpoint is then what there is.
    """
    run = _Run(start, TrainingClock(parts.engine.stats(), start.train_seconds, start.eval_seconds), start.ledger)
    parts.observer.on_start(plan.total_steps, plan.total_seconds)
    if plan.eval_settings.before and start.step == 0:
        await _evaluate(parts, plan, run)
        run.progress = replace(start, eval_before=run.evaluation.metrics if run.evaluation is not None else {})

    pool = _rows_pool(parts, plan, start) if parts.arrivals is None else parts.arrivals
    with WorkThread("trainer") as work, _accounted(parts, run, pool):
        async with pool:
            try:
                while (stopped_by := _end(parts, plan, run)) is None:
                    with run.clock.measure("rollout"):
                        taken = await _unless_interrupted(pool.take(plan.batch_size), parts.interrupts)
                    if taken is None:
                        continue
                    await _step(parts, plan, run, work, pool, taken)
                    if _is_due(plan.eval_settings.every_steps, run):
                        pool.pause_admission()
                        await _evaluate(parts, plan, run)
                        pool.resume_admission()
                    if _end(parts, plan, run) is None:
                        pool.advance(run.progress.step)
                    if _is_due(plan.checkpoint.every_steps, run):
                        await _save(parts, plan, run, work, pool)
            except LudusError:  # whatever stopped it: what was learned so far is not lost
                if not run.is_torn:
                    await _save(parts, plan, run, work, pool)
                raise
            pool.pause_admission()
            await _save(parts, plan, run, work, pool)
        model = None if stopped_by == INTERRUPT else parts.store.folder / "model"
        if model is not None:
            await work.run(parts.save_model, model)
            if plan.eval_settings.after and run.evaluated_step != run.progress.step:
                await _evaluate(parts, plan, run)
    run.ledger.check()
    return _conclude(parts, run, stopped_by, model=model)


async def _step(parts: Parts, plan: Plan, run: _Run, work: WorkThread, pool: GroupSource, taken: Taken) -> None:
    """One step, told to whoever watches; in the run it counts as soon as the masters have moved."""
    version = run.progress.step

    def on_stage(stage: str, ledger: Ledger) -> None:
        run.is_torn = stage == "batch"
        if stage == "train":
            run.progress = replace(run.progress, step=version + 1)
            run.ledger = run.ledger + ledger

    try:
        stepped = await train_step(
            taken, parts, rules=plan.rules, version=version, clock=run.clock, work=work, on_stage=on_stage
        )
    except LudusError:
        if run.progress.step == version:
            pool.give_back(taken)
        raise
    run.metrics = stepped.metrics
    parts.observer.on_step(stepped.step, stepped.metrics)


async def _evaluate(parts: Parts, plan: Plan, run: _Run) -> None:
    """Play the held-out rows; an interrupt cuts it short without a result, not without an account."""
    assert plan.evaluation is not None and parts.play is not None, "an evaluation is due, and nothing is held out"
    step = run.progress.step
    played: list[Episode] = []
    evaluation = evaluate(parts.play, plan.evaluation, step=step, on_episode=played.append)
    try:
        with run.clock.evaluating():
            found = await _unless_interrupted(evaluation, parts.interrupts)
    finally:
        run.ledger = run.ledger + account_evaluated(played)
    run.clock.rebase(parts.engine.stats())
    if found is None:
        return
    run.evaluation, run.evaluated_step = found, step
    metrics = {**found.metrics, "time/eval_s": run.clock.last_eval_s}
    parts.store.add_metrics(step, metrics)
    parts.observer.on_eval(step, metrics)


async def _save(parts: Parts, plan: Plan, run: _Run, work: WorkThread, pool: GroupSource) -> None:
    """A checkpoint from which a resumed run goes on with the same groups."""
    cursor = pool.cursor
    run.progress = replace(
        run.progress,
        next_ordinal=cursor.next_ordinal,
        unconsumed=cursor.unconsumed,
        train_seconds=run.clock.train_seconds,
        eval_seconds=run.clock.eval_seconds,
        ledger=run.ledger,
    )
    with run.clock.measure("checkpoint"):
        how = {"save_trainer": parts.learner.save, "keep": plan.checkpoint.keep}
        await work.run(save_checkpoint, parts.store.checkpoints, run.progress, **how)


@contextmanager
def _accounted(parts: Parts, run: _Run, pool: GroupSource) -> Iterator[None]:
    """However the block is left, what no step took is in the ledger, and a checkpoint of the last step knows it."""
    try:
        yield
    finally:
        run.ledger = run.ledger + account_unused(pool.drain_nowait())
        last = replace(run.progress, ledger=run.ledger, eval_seconds=run.clock.eval_seconds)
        update_checkpoint(parts.store.checkpoints, last)


async def _unless_interrupted(awaited: Coroutine[Any, Any, ResultT], interrupts: Interrupts) -> ResultT | None:
    """The result of what is awaited. None: an interrupt came first, and it was cancelled."""
    work = asyncio.ensure_future(awaited)
    interrupt = asyncio.ensure_future(interrupts.wait())
    try:
        await asyncio.wait({work, interrupt}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        work.cancel()
        interrupt.cancel()
        await asyncio.gather(work, interrupt, return_exceptions=True)


def _rows_pool(parts: Parts, plan: Plan, start: Progress) -> RolloutPool:
    assert parts.play is not None, "rows are played"
    return RolloutPool(
        parts.play,
        GroupStream(
            plan.rows, seed=plan.seed, shuffle=plan.shuffle, next_ordinal=start.next_ordinal, first=start.unconsumed
        ),
        plan.rollout,
        n_samples=plan.n_samples,
        batch_size=plan.batch_size,
        version=start.step,
        total_groups=None if plan.total_steps is None else plan.total_steps * plan.batch_size,
        judge=group_judge(plan.rules),
    )


def _end(parts: Parts, plan: Plan, run: _Run) -> str | None:
    """What ends the run here. None: it goes on.

    A limit in seconds ends it before the step that would pass the limit if it took as long as the one before.
    """
    if parts.interrupts.requested:
        return INTERRUPT
    if plan.total_steps is not None and run.progress.step >= plan.total_steps:
        return plan.steps_key
    if plan.total_seconds is not None and run.clock.train_seconds + run.clock.last_step_s >= plan.total_seconds:
        return "total_train_seconds"
    return None


def _is_due(every_steps: int | None, run: _Run) -> bool:
    return every_steps is not None and run.progress.step % every_steps == 0


def _conclude(parts: Parts, run: _Run, stopped_by: str, *, model: Path | None) -> RunSummary:
    """The run's summary, told to whoever watches; on disk too, unless the run was only interrupted."""
    before = run.progress.eval_before
    after = run.evaluation.metrics if run.evaluation is not None and run.evaluated_step == run.progress.step else {}
    summary = RunSummary(
        run=str(parts.store.folder),
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
        commit=own_commit(),
        metrics=run.metrics,
    )
    if stopped_by != INTERRUPT:
        parts.store.write_summary(summary.to_json())
    parts.observer.on_end(summary)
    return summary
