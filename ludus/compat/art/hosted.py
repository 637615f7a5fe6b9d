"""One model in this process, with everything a backend does with it: weights, sessions, steps, checkpoints.

Knows: how a model's parts are opened and put together, in which order a step happens.  Knows not: HTTP, other models.
Invariants: one thing trains at a time; when a step returns, its weights answer and, unless told otherwise, its
checkpoint is durable; a model that is opened again goes on from its newest checkpoint.

    <root>/<project>/models/<name>/  a run folder, with checkpoints/step-000012/{progress.json, model/, trainer/}
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ludus.algorithms.settings import SUPERVISED
from ludus.api.local import LocalModel, open_local
from ludus.compat.art.backends import OnProgress, TrainConfig, TrainProgress, TrainResult, TrainSFTConfig
from ludus.compat.art.configs import batch_rules, learning_rate
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.schedule import learning_rates
from ludus.compat.art.settle import Settled, settle_groups
from ludus.compat.art.trajectory import Trajectory
from ludus.compat.art.turns import TurnRecords
from ludus.compat.config import Config
from ludus.engines.base import Engine
from ludus.episodes.episodes import IDLE_S, Episodes
from ludus.episodes.ledger import Ledger
from ludus.episodes.outcome import Told
from ludus.errors import UserError
from ludus.loop.checkpoint import Checkpoint, RunProgress, checkpoints, latest_checkpoint, save_checkpoint
from ludus.loop.measure import TrainingClock
from ludus.loop.sft import SftSettings, supervised_batches
from ludus.loop.step import train_step
from ludus.loop.trainer_thread import TrainerThread
from ludus.runs.exporters.select import open_exporter
from ludus.runs.metrics import Metrics, merge_means
from ludus.runs.store import RunStore

if TYPE_CHECKING:
    from ludus.trainer.sharded import ShardedTrainer
    from ludus.trainer.step import ModelTrainer

ALL = 10**9
"""Checkpoints to keep where the user alone deletes them."""
AUTO_BATCH_SIZE = 2
_ABOUT = "model.json"


@dataclass(eq=False)
class HostedModel:
    """Use `open`."""

    config: Config
    store: RunStore
    local: LocalModel
    learner: ModelTrainer | ShardedTrainer
    episodes: Episodes
    records: TurnRecords
    work: TrainerThread
    clock: TrainingClock
    progress: RunProgress
    _stack: AsyncExitStack
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    async def open(cls, config: Config, base_model: str) -> HostedModel:
        """The model of this configuration with its newest checkpoint, answering.

        Raises UserError if its folder belongs to a model with another base, or is being written by another process.
        """
        check_base(config.folder, base_model)
        async with AsyncExitStack() as stack:
            local = await stack.enter_async_context(open_local(config))
            learner = await stack.enter_async_context(local.learner(config))
            exporter = open_exporter(config.trace, config.name)
            # Only now, so that a model that cannot be opened leaves no folder behind.
            found = latest_checkpoint(config.folder / "checkpoints")
            store = stack.enter_context(_open_store(config, found))
            store.export_to(stack.enter_context(exporter))
            _write_about(config.folder, base_model)
            progress = RunProgress() if found is None else found.progress
            if found is not None:
                _load(learner, found)
                if progress.step > 0:
                    await local.engine.publish(progress.step, learner.publish())
            records = TurnRecords(store, rollout=config.rollout, generation=config.gconfig, seed=config.seed)
            episodes = Episodes(local.recorder, records, idle_s=IDLE_S, most_by_key=None, fit=records.fit)
            work = stack.enter_context(TrainerThread("trainer"))
            clock = TrainingClock(local.engine.stats(), progress.train_seconds, progress.eval_seconds)
            return cls(config, store, local, learner, episodes, records, work, clock, progress, stack.pop_all())

    def __repr__(self) -> str:
        return f"HostedModel({str(self.config.folder)!r}, step={self.progress.step}, {self.records!r})"

    @property
    def step(self) -> int:
        """Steps trained; the version of the weights."""
        return self.progress.step

    # ---- what a step works with (see StepComponents)

    @property
    def engine(self) -> Engine:
        return self.local.engine

    async def train(
        self, groups: Sequence[TrajectoryGroup], asked: TrainConfig, on_progress: OnProgress
    ) -> TrainResult:
        """One step on the groups."""
        async with self._lock:
            settled = await asyncio.to_thread(settle_groups, groups, self.records, step=self.step + 1)
            rules = batch_rules(self.config, asked)
            self.learner.configure(lr=learning_rate(self.config, asked), algorithm=rules.algorithm)
            await asyncio.to_thread(self._keep_episodes, settled)

            def on_stage(stage: Literal["batch", "train", "publish"], ledger: Ledger) -> None:
                if stage == "train":  # the masters have moved: the step counts, whatever becomes of the rest
                    self.records.settle(settled.turns)
                    self._advance(self.step + 1, ledger + self.records.take_unused())
                on_progress(TrainProgress(stage))

            stepped = await train_step(
                settled.taken,
                self,
                rules=rules,
                version=self.step,
                clock=self.clock,
                work=self.work,
                on_stage=on_stage,
            )
            self._advance(stepped.step, Ledger.zero())  # by the time it took
            metrics = {
                **stepped.metrics,
                "rollout/empty_trajectories": float(settled.num_empty),
                "rollout/foreign_choices": float(settled.num_foreign_choices),
            }
            return await self._result(metrics, on_progress, is_saved=asked.save_checkpoint)

    async def train_sft(
        self, trajectories: Sequence[Trajectory], asked: TrainSFTConfig, on_progress: OnProgress
    ) -> TrainResult:
        """Supervised training on every assistant message of all histories; nothing is sampled meanwhile."""
        async with self._lock:
            batch_size = AUTO_BATCH_SIZE if asked.batch_size == "auto" else asked.batch_size
            settings = SftSettings(batch_size=batch_size, epochs=asked.epochs, shuffle=asked.shuffle)
            rows = [_row(history) for trajectory in trajectories for history in trajectory.histories()]
            batches = await self.work.run(
                lambda: list(
                    supervised_batches(
                        self.local.text, rows, settings, row_tokens=self.config.trainer.row_tokens, seed=asked.seed
                    )
                )
            )
            rates, seen = learning_rates(asked.learning_rate, len(batches)), []
            await self.engine.pause()
            try:
                for number, (batch, rate) in enumerate(zip(batches, rates, strict=True), start=1):
                    self.learner.configure(lr=rate)
                    metrics = await self.work.run(self._train_supervised, batch)
                    seen.append(metrics)
                    on_progress(TrainProgress("train", number, len(batches), dict(metrics)))
            finally:  # what was trained until then is what answers
                self._advance(self.step + 1, Ledger.zero())
                await self.engine.publish(self.step, self.learner.publish())
                await self.engine.resume()
            on_progress(TrainProgress("publish"))
            metrics = {**merge_means(seen), "train/lr": rates[-1], "train/batches": float(len(batches))}
            self.store.add_metrics(self.step, metrics)
            return await self._result(metrics, on_progress, is_saved=True)

    def keep_checkpoints(self, steps: Collection[int]) -> None:
        """Delete all others but the newest."""
        for checkpoint in checkpoints(self.store.checkpoints)[:-1]:
            if checkpoint.progress.step not in steps:
                shutil.rmtree(checkpoint.folder)

    def last_result(self) -> TrainResult:
        """Of the newest step, as it is on disk."""
        metrics = dict(self.store.metrics()).get(self.step, {})
        found = latest_checkpoint(self.store.checkpoints)
        return TrainResult(
            step=self.step, metrics=metrics, checkpoint_path=None if found is None else str(found.folder / "model")
        )

    async def close(self) -> None:
        """Account for what was never trained, and free everything."""
        await self.episodes.expire()
        for handle in self.episodes.open_sessions:
            await self.episodes.end(handle, Told("ok", "the backend was closed"))
        unused = self.records.take_unused(is_last=True)
        if unused.sampled:
            self._advance(self.step, unused)
            await self.work.run(self._save_progress)
        await self._stack.aclose()

    # ---- inside

    def _keep_episodes(self, settled: Settled) -> None:
        for episode in settled.episodes:
            self.store.add_episode(episode, step=self.step + 1)

    def _train_supervised(self, batch: Any) -> Metrics:
        metrics = self.learner.train_batch(batch, SUPERVISED)
        with self.local.lease.hold("trainer"):
            self.learner.publish().copy_into_shared()
        return metrics

    def _advance(self, step: int, ledger: Ledger) -> None:
        ledger.check()
        self.progress = replace(
            self.progress,
            step=step,
            train_seconds=self.clock.train_seconds,
            ledger=self.progress.ledger + ledger,
        )

    async def _result(self, metrics: Metrics, on_progress: OnProgress, *, is_saved: bool) -> TrainResult:
        path = None
        if is_saved:
            checkpoint = await self.work.run(self._save)
            path = str(checkpoint.folder / "model")
            on_progress(TrainProgress("checkpoint"))
        return TrainResult(step=self.step, metrics=dict(metrics), checkpoint_path=path)

    def _save(self) -> Checkpoint:
        def save(folder: Path) -> None:
            self.learner.save(folder)
            self.local.save(self.learner, folder.parent / "model")

        saved = save_checkpoint(self.store.checkpoints, self.progress, save_trainer=save, keep=ALL)
        for older in checkpoints(self.store.checkpoints)[:-1]:
            shutil.rmtree(older.trainer_folder, ignore_errors=True)  # its weights stay; only the newest is gone on from
        return saved

    def _save_progress(self) -> None:
        found = latest_checkpoint(self.store.checkpoints)
        if found is not None and found.progress.step == self.step:  # otherwise there is nothing to go on from
            save_checkpoint(self.store.checkpoints, self.progress, save_trainer=self.learner.save, keep=ALL)


def check_base(folder: Path, base_model: str) -> None:
    """Raises UserError if the folder belongs to a model with another base."""
    path = folder / _ABOUT
    if not path.exists():
        return
    before = json.loads(path.read_text(encoding="utf-8")).get("base_model")
    if before != base_model:
        raise UserError(
            f"the model in {str(folder)!r} has the base model {before!r}, and {base_model!r} was asked for; choose "
            "another name, or keep the base model"
        )


def copy_checkpoint(found: Checkpoint, folder: Path) -> None:
    """Make it the first checkpoint of the model in `folder`, whose own account begins with it."""
    target = folder / "checkpoints" / found.folder.name
    draft = target.with_name(f".draft-{target.name}")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(found.folder, draft)
    progress = {"step": found.progress.step, "unconsumed": [], "ledger": {}}
    (draft / "progress.json").write_text(json.dumps(progress) + "\n", encoding="utf-8")
    draft.replace(target)


def _open_store(config: Config, found: Checkpoint | None) -> RunStore:
    if (config.folder / "run.db").exists():
        return RunStore.go_on(config.folder, config.to_yaml(), step=0 if found is None else found.progress.step)
    return RunStore.create(config.run_root, config.name, config.to_yaml())


def _write_about(folder: Path, base_model: str) -> None:
    path = folder / _ABOUT
    if not path.exists():
        path.write_text(json.dumps({"base_model": base_model}, indent=2) + "\n", encoding="utf-8")


def _load(learner: ModelTrainer | ShardedTrainer, found: Checkpoint) -> None:
    """With optimizer and all from the newest checkpoint; with weights alone from one that was forked."""
    if any(found.trainer_folder.glob("*")):
        learner.load(found.trainer_folder)
    else:
        learner.take_weights(found.folder / "model")


def _row(history: Any) -> Mapping[str, Any]:
    return {"messages": history.messages(), "tools": history.tools}
