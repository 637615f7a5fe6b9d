"""Runs agents for a check as a run does: with an agent runtime, behind a gateway.

Knows: the episode runner.  Knows not: the checks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ludus.agents.adapter import AgentAdapter
from ludus.episodes.keys import SessionKeys
from ludus.episodes.recorder import Recorder
from ludus.gateway.server import GatewayServer
from ludus.rollout.runner import EpisodeRunner, Players
from ludus.rollout.runtime import AgentRuntime
from ludus.rollout.settings import GenerationSettings, RolloutSettings


@asynccontextmanager
async def playing(
    agent: AgentAdapter, recorder: Recorder, generation: GenerationSettings, settings: RolloutSettings
) -> AsyncIterator[EpisodeRunner]:
    """A runner for episodes of the agent until the block ends; episodes are returned, not stored."""
    with AgentRuntime(recorder, GatewayServer(SessionKeys())) as runtime:
        async with EpisodeRunner(
            Players({"": agent}), runtime, settings, training=generation, evaluation=generation
        ) as runner:
            yield runner
