"""A hosted model that is sampled by ART's rollouts and trained on their trajectories.

Knows: trajectories, rollouts, their sessions.  Knows not: HTTP, how a step is computed.
Invariants: every rollout has its own session, and requests outside of rollouts share one for the model; when a step
returns, its checkpoint is durable unless the call asks for none.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ludus.api.hosted import HostedModel
from ludus.compat.art.backends import (
    OnProgress,
    TrainArguments,
    TrainProgress,
    TrainResult,
    TrainSFTArguments,
)
from ludus.compat.art.configs import batch_rules, learning_rate
from ludus.compat.art.rollout import current_rollout
from ludus.compat.art.rollout_sessions import RolloutSessions
from ludus.compat.art.schedule import learning_rates
from ludus.compat.art.settle import settle_groups
from ludus.compat.art.turns import TurnRecords
from ludus.episodes.episodes import IDLE_S, Episodes
from ludus.episodes.outcome import Reported
from ludus.episodes.spec import SessionSpec
from ludus.gateway.server import GatewayServer
from ludus.loop.sft import SftSettings
from ludus.runs.metrics import Metrics

AUTO_BATCH_SIZE = 2
_ENDED = "ended-rollout"


class ServedModel:
    """A model with open sessions; `close` ends them, and accounts for tokens that were never trained."""

    def __init__(self, model: HostedModel, server: GatewayServer) -> None:
        self.model = model
        self.records = records = TurnRecords(model.run.store, model.config)
        self.episodes = Episodes(model.recorder, records, idle_s=IDLE_S, most_by_key=None, fit=records.fit)
        self._server = server
        self.sessions = RolloutSessions(lambda: model.step, self._begin, self._end)

    def __repr__(self) -> str:
        return f"ServedModel({self.model!r}, {self.sessions!r}, {self.records!r})"

    def key(self) -> str:
        """The key for a request that is made now."""
        rollout = current_rollout()
        # For tasks left running by an ended rollout: the gateway answers that the session has ended.
        return _ENDED if rollout is not None and rollout.has_ended else self.sessions.now()

    async def train(self, asked: TrainArguments, on_progress: OnProgress) -> TrainResult:
        """One step on the groups."""
        model, config = self.model, self.model.config
        async with model.lock:
            settled = await asyncio.to_thread(settle_groups, asked.groups, self.records, step=model.step + 1)

            def on_stage(stage: Any, *_: object) -> None:
                if stage == "train":
                    self.records.settle(settled.turns)
                    model.account(self.records.take_unused())
                on_progress(TrainProgress(stage))

            rules, lr = batch_rules(config, asked.config), learning_rate(config, asked.config)
            metrics = {
                **await model.train(settled.taken, rules, lr=lr, on_stage=on_stage),
                "rollout/empty_trajectories": float(settled.num_empty),
                "rollout/foreign_choices": float(settled.num_foreign_choices),
                "rollout/edited_choices": float(settled.num_edited_choices),
            }
            return await self._result(metrics, on_progress, is_saved=asked.config.save_checkpoint)

    async def train_sft(self, asked: TrainSFTArguments, on_progress: OnProgress) -> TrainResult:
        """Train on every assistant message of all histories with a supervised loss; sampling is paused meanwhile."""
        config = asked.config
        batch_size = AUTO_BATCH_SIZE if config.batch_size == "auto" else config.batch_size
        histories = [history for trajectory in asked.trajectories for history in trajectory.histories()]
        async with self.model.lock:
            metrics = await self.model.train_supervised(
                [{"messages": history.messages(), "tools": history.tools} for history in histories],
                SftSettings(batch_size=batch_size, epochs=config.epochs, shuffle=config.shuffle),
                lambda num_batches: learning_rates(config.learning_rate, num_batches),
                seed=config.seed,
                on_batch=lambda number, total, seen: on_progress(TrainProgress("train", number, total, dict(seen))),
            )
            on_progress(TrainProgress("publish"))
            return await self._result(metrics, on_progress, is_saved=True)

    def last_result(self) -> TrainResult:
        """The result of the newest step, read from disk."""
        step, path = self.model.step, self.model.saved_weights
        metrics = dict(self.model.run.store.metrics()).get(step, {})
        return TrainResult(step=step, metrics=metrics, checkpoint_path=None if path is None else str(path))

    async def close(self) -> None:
        await self.episodes.expire()
        for handle in self.episodes.open_sessions:
            await self.episodes.end(handle, Reported("ok", "the backend was closed"))
        self.model.account(self.records.take_unused(is_last=True))

    async def _result(self, metrics: Metrics, on_progress: OnProgress, *, is_saved: bool) -> TrainResult:
        path = None
        if is_saved:
            path = str(await self.model.save())
            on_progress(TrainProgress("checkpoint"))
        return TrainResult(step=self.model.step, metrics=dict(metrics), checkpoint_path=path)

    def _begin(self, group_id: str | None, name: str) -> str:
        """Open a session; returns its key, which is valid at the gateway of all models."""
        session_id = name if group_id is None else f"{group_id}-{name}"
        handle, key = self.episodes.open(SessionSpec(session_id, group_id=group_id))
        self._server.keys.bind(key, handle)
        return key

    async def _end(self, key: str, ending: Reported) -> None:
        handle = self._server.keys.get(key)
        assert handle is not None, "the rollout's session is not open"
        self._server.keys.release(handle)
        await self.episodes.end(handle, ending)
