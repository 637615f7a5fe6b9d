"""A model in this process that callers train step by step, on groups and conversations that they bring.

Knows: the order within a step, what is saved of it.  Knows not: who plays, HTTP, other models.
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
"""Number of checkpoints to keep where only the user deletes them."""


class HostedModel:
    """Use `open`."""

    def __init__(self, config: Config, run: OpenRun, work: TrainerThread) -> None:
        self.config = config
        self.run = run
        self.recorder = run.local.recorder
        """Opens the model's sessions; their requests may also name its base and its saved steps."""
        self.progress = run.start
        self.lock = asyncio.Lock()
        """Callers hold it while they train or save: one at a time."""
        self._work = work
        self._clock = TrainingClock(run.engine.stats(), run.start.train_seconds, run.start.eval_seconds)

    @classmethod
    async def open(cls, config: Config, stack: AsyncExitStack, *, base_name: str | None = None) -> HostedModel:
        """The model of this configuration with its newest checkpoint; it answers until the stack is closed.

        base_name: a further name by which requests may call its base. None: the configuration's names only.
        Raises UserError if its folder belongs to a model with another base, or if another process writes it.
        """
        check_base(config.folder, config.model.path)
        found, goes_on = whole_checkpoint(config.folder / "checkpoints"), RunStore.is_there(config.folder)
        config = planned(settled(config, goes_on=goes_on), goes_on=goes_on)
        text = config.to_yaml()
        opening = open_run(config, found, goes_on=goes_on, text=text, model_name=config.name, base_name=base_name)
        run = await stack.enter_async_context(opening)
        work = stack.enter_context(TrainerThread("trainer"))
        model = cls(config, run, work)
        # Tokens that were counted after the last step are saved when the model is closed.
        stack.push_async_callback(lambda: model._work.run(update_checkpoint, run.store.checkpoints, model.progress))
        return model

    def __repr__(self) -> str:
        return f"HostedModel({str(self.config.folder)!r}, step={self.step})"

    @property
    def step(self) -> int:
        """Steps trained; the version of the weights."""
        return self.progress.step

    def account(self, ledger: Ledger, *, step: int | None = None) -> None:
        """Add a ledger to the model's own. step: the step that used the tokens. None: no step did."""
        ledger.check()
        self.progress = replace(
            self.progress, step=self.step if step is None else step, ledger=self.progress.ledger + ledger
        )

    async def train(self, taken: TakenGroups, rules: BatchRules, *, lr: float, on_stage: OnStage) -> Metrics:
        """One step on the groups. Their episodes are written to the run store first."""
        step = self.step + 1
        self.run.learner.configure(lr=lr, algorithm=rules.algorithm)
        for episode in (episode for group in taken.groups for episode in group.episodes):
            await asyncio.to_thread(self._record, episode, step)

        def on_own_stage(stage: Literal["batch", "train", "publish"], ledger: Ledger, memory: Memory) -> None:
            if stage == "train":  # the master weights have changed: the step counts, even if what follows fails
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
        """One step on every assistant message of the rows, in as many batches as they make. Sampling pauses meanwhile.

        rates: given the number of batches, the learning rate of each.  on_batch: called after each batch with its
        number, their count, and its metrics.
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
        finally:  # even after an error the weights trained so far are published
            self.account(Ledger(), step=self.step + 1)
            await engine.publish(self.step, self.run.learner.publish())
            await engine.resume()
        metrics = {**merge_means(seen), "train/lr": rates_B[-1], "train/batches": float(len(batches))}
        self.run.store.add_metrics(self.step, metrics)
        return metrics

    async def save(self) -> Path:
        """Save this step durably; returns the folder of its weights."""
        self.progress = replace(
            self.progress, train_seconds=self._clock.train_seconds, num_episodes=self.run.store.num_episodes
        )
        return await self._work.run(self._save)

    @property
    def saved_weights(self) -> Path | None:
        """Folder of the newest saved weights. None: none were saved."""
        found = latest_checkpoint(self.run.store.checkpoints)
        return None if found is None else found.folder / "model"

    def keep_checkpoints(self, steps: Collection[int]) -> None:
        """Delete all checkpoints but those of these steps and the newest."""
        for checkpoint in checkpoints(self.run.store.checkpoints)[:-1]:
            if checkpoint.progress.step not in steps:
                shutil.rmtree(checkpoint.folder)

    def _record(self, episode: Episode, step: int) -> None:
        """Write the episode to the run store, unless an earlier try at this step has written it already."""
        known = self.run.store.find_episode(episode.id)
        if known is None or replace(known, finished_at=episode.finished_at) != episode:
            self.run.store.add_episode(episode, step=step)

    def _save(self) -> Path:
        def save(folder: Path) -> None:
            self.run.learner.save(folder)
            self.run.local.save(self.run.learner, folder.parent / "model")

        saved = save_checkpoint(self.run.store.checkpoints, self.progress, save_trainer=save, keep=ALL)
        for older in checkpoints(self.run.store.checkpoints)[:-1]:
            drop_trainer(older)  # its weights stay; only the newest needs the optimizer's state
        return saved.folder / "model"


def trained_steps(folder: Path) -> int:
    """Steps that the model in `folder` was trained for, up to its newest checkpoint."""
    found = latest_checkpoint(folder / "checkpoints")
    return 0 if found is None else found.progress.step


def saved_model(folder: Path, step: int | None) -> Path:
    """The folder of the saved weights of a step of the model in `folder`.

    step: None: the newest.  Raises UserError if that step was not saved.
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
    """Begin the model in `folder` with a checkpoint of the model in `source`; returns the checkpoint's step.

    The new model's ledger begins empty. not_after_step: take the newest checkpoint up to this step. None: the newest.
    Raises UserError if there is no such checkpoint, if the models have different bases, or if `folder` is not new.
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
