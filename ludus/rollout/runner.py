"""One episode, from its row to its record: the agent plays, and however that ends becomes an Episode.

Knows: agents, sessions, deadlines.  Knows not: groups, advantages, training.
Invariants: an agent's fault never raises here, it is the episode's outcome; every token sampled for the episode is in
its record; the episode has been kept when `run` returns.

    returned ─▶ ok · rejected · failed · truncated (it had met a limit)
    raised   ─▶ failed · truncated (because of a limit) · timeout (because of the deadline)
    deadline ─▶ timeout              cancelled from outside ─▶ cancelled
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any

from ludus.agents.actors import check_actors
from ludus.agents.adapter import AgentAdapter, EpisodeInfo
from ludus.episodes.archive import Archive
from ludus.episodes.episodes import Episodes
from ludus.episodes.limits import Limits
from ludus.episodes.spec import SessionSpec
from ludus.rollout.playing import means, play_to_end
from ludus.rollout.remote import RemoteAgentAdapter
from ludus.rollout.runtime import AgentRuntime
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.subproc import process_for
from ludus.rollout.tasks import EpisodeTask
from ludus.types import Episode


class EpisodeRunner:
    """Plays episodes of one agent in one runtime, once it is entered as an async context manager."""

    def __init__(
        self,
        agent: AgentAdapter,
        runtime: AgentRuntime,
        settings: RolloutSettings,
        *,
        training: GenerationSettings,
        evaluation: GenerationSettings,
        archive: Archive | None = None,
        eval_agent: AgentAdapter | None = None,
    ) -> None:
        """archive: None: episodes are only returned.  eval_agent: plays the evaluations. None: `agent` does."""
        self._agent = agent
        self._eval_agent = eval_agent
        self._runtime = runtime
        self._hosting = AsyncExitStack()
        self._settings = settings
        self._training = training
        self._evaluation = evaluation
        self._episodes = Episodes(runtime.recorder, archive, keys=runtime.keys)

    def __repr__(self) -> str:
        return f"EpisodeRunner({self._agent.name}, {self._runtime!r})"

    async def __aenter__(self) -> EpisodeRunner:
        """What the agent needs is set up. Raises UserError if it could not ask its actors."""
        if not isinstance(self._agent, RemoteAgentAdapter):  # workers ask for themselves
            check_actors(self._settings.actors)
        await self._hosting.__aenter__()
        for agent in (self._agent, self._eval_agent):
            if agent is not None:
                await self._hosting.enter_async_context(self._runtime.agents.hosting(agent))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._hosting.__aexit__(*error)

    async def run(self, task: EpisodeTask) -> Episode:
        """The finished episode, kept. Cancelling ends it with outcome `cancelled` instead of raising."""
        async with process_for(self._agent_of(task), task.episode_id):
            return await self._play(task)

    def _agent_of(self, task: EpisodeTask) -> AgentAdapter:
        return self._agent if self._eval_agent is None or not task.is_eval else self._eval_agent

    async def _play(self, task: EpisodeTask) -> Episode:
        info = EpisodeInfo(task.episode_id, task.task_id, task.group_id, task.step, task.is_eval)
        handle, key = self._episodes.open(self._spec(task))
        with self._runtime.context(handle.session, key, info, self._settings.actors) as context:
            timeout_s = self._settings.episode_timeout_s
            ending = await play_to_end(
                self._runtime.agents, self._agent_of(task), task.data, context, timeout_s=timeout_s
            )
            return await self._episodes.end(
                handle, ending, metrics=means(context.agent_metrics), spans=context.spans.snapshot()
            )

    def _spec(self, task: EpisodeTask) -> SessionSpec:
        settings, generation = self._settings, self._evaluation if task.is_eval else self._training
        timeout_s = settings.episode_timeout_s
        return SessionSpec(
            task.episode_id,
            task.task_id,
            task.group_id,
            limits=Limits(
                max_turns=settings.max_turns,
                max_tokens=settings.max_tokens,
                deadline_at=None if timeout_s is None else time.monotonic() + timeout_s,
            ),
            sampling=generation.sampling(seed=task.seed),
            pinned=() if task.is_eval else settings.pinned,
            step=task.step,
            is_eval=task.is_eval,
        )
