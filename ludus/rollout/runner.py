"""Plays one episode, from its row to its record: runs the agent and turns any ending into an Episode.

Knows: agents, sessions, deadlines.  Knows not: groups, advantages, training.
Invariants: an agent's error never raises here, it is the episode's outcome; every token sampled for the episode is in
its record; the episode is archived before `run` returns.

    returned ─▶ ok · rejected · failed · truncated (it had met a limit)
    raised   ─▶ failed · truncated (because of a limit) · timeout (because of the deadline)
    deadline ─▶ timeout              cancelled from outside ─▶ cancelled
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ludus.agents.actors import check_actors
from ludus.agents.adapter import AgentAdapter, EpisodeInfo
from ludus.episodes.archive import Archive
from ludus.episodes.episodes import Episodes
from ludus.episodes.limits import Limits
from ludus.episodes.recall import Recall
from ludus.episodes.spec import SessionSpec
from ludus.rollout.playing import means, play_to_end
from ludus.rollout.remote import RemoteAgentAdapter
from ludus.rollout.runtime import AgentRuntime
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.subproc import process_for
from ludus.rollout.tasks import EpisodeTask
from ludus.types import Episode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Players:
    """The agents, by the rows they play."""

    training: Mapping[str, AgentAdapter]
    """By source of rows; the one under '' plays the rows of all sources not listed."""
    evaluation: Mapping[str, AgentAdapter] = field(default_factory=dict)
    """As `training`, for evaluations; for sources not listed here, `training` applies."""

    @property
    def agents(self) -> tuple[AgentAdapter, ...]:
        """All agents, without repetitions."""
        return tuple({id(agent): agent for agent in (*self.training.values(), *self.evaluation.values())}.values())

    def find(self, source: str, *, is_eval: bool) -> AgentAdapter | None:
        """The agent for rows of this source. None: there is none."""
        tables = (self.evaluation, self.training) if is_eval else (self.training,)
        return next((table[name] for table in tables for name in (source, "") if name in table), None)


class EpisodeRunner:
    """Plays episodes in one runtime. Use as an async context manager."""

    def __init__(
        self,
        players: Players,
        runtime: AgentRuntime,
        settings: RolloutSettings,
        *,
        training: GenerationSettings,
        evaluation: GenerationSettings,
        archive: Archive | None = None,
        recall: Callable[[str], Recall | None] = lambda _: None,
    ) -> None:
        """archive: None: episodes are only returned.  recall: (id): what an interrupted run sampled for the episode."""
        self._players = players
        self._runtime = runtime
        self._hosting = AsyncExitStack()
        self._settings = settings
        self._training = training
        self._evaluation = evaluation
        self._recall = recall
        self._episodes = Episodes(runtime.recorder, archive, keys=runtime.keys)

    def __repr__(self) -> str:
        return f"EpisodeRunner({', '.join(agent.name for agent in self._players.agents)}, {self._runtime!r})"

    async def __aenter__(self) -> EpisodeRunner:
        """Set up the agents. Raises UserError if an agent could not reach the actors."""
        agents = self._players.agents
        if not all(isinstance(agent, RemoteAgentAdapter) for agent in agents):  # workers ask for themselves
            check_actors(self._settings.actors)
        await self._hosting.__aenter__()
        for agent in agents:
            await self._hosting.enter_async_context(self._runtime.agents.hosting(agent))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._hosting.__aexit__(*error)

    async def run(self, task: EpisodeTask) -> Episode:
        """The finished and archived episode. Cancelling ends it with outcome `cancelled` instead of raising."""
        agent = self._players.find(task.source, is_eval=task.is_eval)
        assert agent is not None, f"somebody plays the rows of {task.source!r}"
        async with process_for(agent, task.episode_id):
            return await self._play(agent, task)

    async def _play(self, agent: AgentAdapter, task: EpisodeTask) -> Episode:
        info = EpisodeInfo(task.episode_id, task.task_id, task.group_id, task.step, task.is_eval)
        recall = await asyncio.to_thread(self._recall, task.episode_id)
        handle, key = self._episodes.open(replace(self._spec(task), recall=recall))
        with self._runtime.context(handle.session, key, info, self._settings.actors) as context:
            timeout_s = self._settings.episode_timeout_s
            ending = await play_to_end(self._runtime.agents, agent, task.data, context, timeout_s=timeout_s)
            if recall is not None and recall.num_given:
                logger.info("episode.recalled id=%s answers=%d", task.episode_id, recall.num_given)
            return await self._episodes.end(
                handle, ending, metrics=means(context.agent_metrics), spans=context.spans.snapshot()
            )

    def _spec(self, task: EpisodeTask) -> SessionSpec:
        settings, generation = self._settings, self._evaluation if task.is_eval else self._training
        timeout_s = settings.episode_timeout_s
        sampling, pinned = generation.sampling(seed=task.seed), () if task.is_eval else settings.pinned
        if task.is_greedy:
            sampling, pinned = replace(sampling, temperature=0.0), (*pinned, "temperature")
        return SessionSpec(
            task.episode_id,
            task.task_id,
            task.group_id,
            limits=Limits(
                max_turns=settings.max_turns,
                max_tokens=settings.max_tokens,
                deadline_at=None if timeout_s is None else time.monotonic() + timeout_s,
            ),
            sampling=sampling,
            pinned=pinned,
            step=task.step,
            is_eval=task.is_eval,
        )
