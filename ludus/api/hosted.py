"""A model in this process that is trained on groups and conversations handed in, one call after the other.

Knows: in which order a step happens, what is saved of it.  Knows not: what plays, HTTP, other models.
Invariants: when a step returns, its weights answer; a model that is opened again goes on from its newest checkpoint.

    <run_root>/<name>/  a run folder, with checkpoints/step-000012/{progress.json, model/, trainer/}
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ludus.algorithms.base import Memory
from ludus.api.cards.start import planned
from ludus.api.local import settled
from ludus.api.run import OpenRun, open_run
from ludus.config import Config
from ludus.episodes.ledger import Ledger
from ludus.errors import UserError
from ludus.loop.batch import BatchRules
from ludus.loop.checkpoint import (
    checkpoints,
    copy_checkpoint,
    drop_trainer,
    latest_checkpoint,
    save_checkpoint,
    update_checkpoint,
    whole_checkpoint,
)
from ludus.loop.measure import TrainingClock
from ludus.loop.sft import SftSettings, supervised_batches, train_conversations
from ludus.loop.step import OnStage, train_step
from ludus.loop.trainer_thread import TrainerThread
from ludus.rollout.groups import TakenGroups
from ludus.runs.folder import read_config
from ludus.runs.metrics import Metrics, merge_means
from ludus.runs.store import RunStore
from ludus.types import Episode

ALL = 10**9
"""Checkpoints to keep where the user alone deletes them."""


class HostedModel:
    """Use `open`."""

    def __init__(self, config: Config, run: OpenRun, work: TrainerThread) -> None:
        self.config = config
        self.run = run
        self.recorder = run.local.recorder
        """Opens its sessions, whose requests may name its base and its saved steps too."""
        self.progress = run.start
        self.lock = asyncio.Lock()
        """Held by a call that trains and saves: one thing at a time."""
        self._work = work
        self._clock = TrainingClock(run.engine.stats(), run.start.train_seconds, run.start.eval_seconds)

    @classmethod
    async def open(cls, config: Config, stack: AsyncExitStack, *, base_name: str | None = None) -> HostedModel:
        """The model of this configuration with its newest checkpoint, answering, until the stack is left.

        base_name: what requests call its base, besides what the configuration does. None: nothing else.
        Raises UserError if its folder belongs to a model with another base, or is being written by another process.
        """
        check_base(config.folder, config.model.path)
        found, goes_on = whole_checkpoint(config.folder / "checkpoints"), RunStore.is_there(config.folder)
        config = planned(settled(config, goes_on=goes_on))
        text = config.to_yaml()
        opening = open_run(config, found, goes_on=goes_on, text=text, model_name=config.name, base_name=base_name)
        run = await stack.enter_async_context(opening)
        work = stack.enter_context(TrainerThread("trainer"))
        model = cls(config, run, work)
        # What was counted since the last step.
        stack.push_async_callback(lambda: model._work.run(update_checkpoint, run.store.checkpoints, model.progress))
        return model

    def __repr__(self) -> str:
        return f"HostedModel({str(self.config.folder)!r}, step={self.step})"

    @property
    def step(self) -> int:
        """Steps trained; the version of the weights."""
        return self.progress.step

    def account(self, ledger: Ledger, *, step: int | None = None) -> None:
        """Tokens that were sampled, and what became of them. step: None: no step took them."""
        ledger.check()
        self.progress = replace(
            self.progress, step=self.step if step is None else step, ledger=self.progress.ledger + ledger
        )

    async def train(self, taken: TakenGroups, rules: BatchRules, *, lr: float, on_stage: OnStage) -> Metrics:
        """One step on the groups, whose episodes are in the run store before it."""
        step = self.step + 1
        self.run.learner.configure(lr=lr, algorithm=rules.algorithm)
        for episode in (episode for group in taken.groups for episode in group.episodes):
            await asyncio.to_thread(self._record, episode, step)

        def on_own_stage(stage: Literal["batch", "train", "publish"], ledger: Ledger, memory: Memory) -> None:
            if stage == "train":  # the masters have moved: the step counts, whatever becomes of the rest
                self.account(ledger, step=step)
                self.progress = replace(self.progress, memory=memory)
            on_stage(stage, ledger, memory)

        stepped = await train_step(
            taken,
            self.run,
            rules=rules,
            version=self.step,
            clock=self._clock,
            work=self._work,
            memory=self.progress.memory,
            record_tokens=self.config.trainer.record_tokens,
            on_stage=on_own_stage,
        )
        return stepped.metrics

    async def train_supervised(
        self,
        rows: Sequence[Mapping[str, Any]],
        settings: SftSettings,
        rates: Callable[[int], Sequence[float]],
        *,
        seed: int,
        on_batch: Callable[[int, int, Metrics], None],
    ) -> Metrics:
        """One step on every assistant message of the rows, however many batches it takes; nothing is sampled meanwhile.

        rates: the learning rate of each of so many batches.  on_batch: called with number, count and metrics of each.
        """
        how = {"row_tokens": self.config.trainer.row_tokens, "seed": seed}
        batches = await self._work.run(lambda: [*supervised_batches(self.run.local.text, rows, settings, **how)])
        rates_B, seen, engine = rates(len(batches)), list[Metrics](), self.run.engine
        await engine.pause()
        try:
            for number, (batch, rate) in enumerate(zip(batches, rates_B, strict=True), start=1):
                self.run.learner.configure(lr=rate)
                seen.append(await self._work.run(train_conversations, self.run.learner, batch, self.run.local.lease))
                on_batch(number, len(batches), seen[-1])
        finally:  # what was trained until then is what answers
            self.account(Ledger(), step=self.step + 1)
            await engine.publish(self.step, self.run.learner.publish())
            await engine.resume()
        metrics = {**merge_means(seen), "train/lr": rates_B[-1], "train/batches": float(len(batches))}
        self.run.store.add_metrics(self.step, metrics)
        return metrics

    async def save(self) -> Path:
        """The folder of the weights of this step, which is durable."""
        self.progress = replace(
            self.progress, train_seconds=self._clock.train_seconds, num_episodes=self.run.store.num_episodes
        )
        return await self._work.run(self._save)

    @property
    def saved_weights(self) -> Path | None:
        """Folder of the newest that were saved. None: none were."""
        found = latest_checkpoint(self.run.store.checkpoints)
        return None if found is None else found.folder / "model"

    def keep_checkpoints(self, steps: Collection[int]) -> None:
        """Delete all others but the newest."""
        for checkpoint in checkpoints(self.run.store.checkpoints)[:-1]:
            if checkpoint.progress.step not in steps:
                shutil.rmtree(checkpoint.folder)

    def _record(self, episode: Episode, step: int) -> None:
        """Once, also where the step had been begun before, and was not taken."""
        known = self.run.store.find_episode(episode.id)
        if known is None or replace(known, finished_at=episode.finished_at) != episode:
            self.run.store.add_episode(episode, step=step)

    def _save(self) -> Path:
        def save(folder: Path) -> None:
            self.run.learner.save(folder)
            self.run.local.save(self.run.learner, folder.parent / "model")

        saved = save_checkpoint(self.run.store.checkpoints, self.progress, save_trainer=save, keep=ALL)
        for older in checkpoints(self.run.store.checkpoints)[:-1]:
            drop_trainer(older)  # its weights stay; only the newest is gone on from
        return saved.folder / "model"


def trained_steps(folder: Path) -> int:
    """Of the model in `folder`, as far as they were saved."""
    found = latest_checkpoint(folder / "checkpoints")
    return 0 if found is None else found.progress.step


def saved_model(folder: Path, step: int | None) -> Path:
    """The folder of the weights of a step that was saved, of the model in `folder`.

    step: None: the newest.  Raises UserError if there are none.
    """
    there = {each.progress.step: each.folder / "model" for each in checkpoints(folder / "checkpoints")}
    wanted = max(there, default=None) if step is None else step
    if wanted not in there:
        steps = ", ".join(map(str, sorted(there))) or "none"
        asked = "" if step is None else f" of step {step}"
        raise UserError(f"{str(folder)!r} has no saved weights{asked}; it has: {steps}")
    return there[wanted]


def check_base(folder: Path, base_model: str) -> None:
    """Raises UserError if the folder belongs to a model with another base."""
    before = read_config(folder)["model"]["path"] if (folder / "config.yaml").exists() else base_model
    if before != base_model:
        raise UserError(
            f"the model in {str(folder)!r} has the base model {before!r}, and {base_model!r} was asked for; choose "
            "another name, or keep the base model"
        )


def fork_checkpoint(source: Path, folder: Path, base_model: str, *, not_after_step: int | None) -> int:
    """Begin the model in `folder` with the newest checkpoint of the one in `source` up to a step; that step.

    The model's own account begins with it. not_after_step: None: the newest. Raises UserError if there is none, if the
    base is another, or if the model was opened before.
    """
    if RunStore.is_there(folder) or trained_steps(folder):
        raise UserError(f"{folder.name!r} has begun already; fork into a new name, before the model is registered")
    check_base(source, base_model)
    there = checkpoints(source / "checkpoints")
    fitting = [each for each in there if not_after_step is None or each.progress.step <= not_after_step]
    if not fitting:
        steps = ", ".join(str(each.progress.step) for each in there) or "none"
        bound = "" if not_after_step is None else f" up to step {not_after_step}"
        raise UserError(f"{str(source)!r} has no checkpoint{bound}; it has: {steps}")
    copy_checkpoint(fitting[-1], folder / "checkpoints")
    return fitting[-1].progress.step
