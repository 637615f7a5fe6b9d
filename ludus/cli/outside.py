"""Episodes with a model behind somebody else's URL.

Knows: agents, the forwarder.  Knows not: tokens, engines; nothing here can be trained on.
"""

from __future__ import annotations

import asyncio
import importlib
import time
import traceback
from collections.abc import Sequence
from typing import Any

from ludus.agents.reward import Scored, score_episode
from ludus.agents.thread import AgentThread
from ludus.agents.workflow import AgentRun, EpisodeContext, resolve_workflow
from ludus.api.blocking import run_blocking
from ludus.cli.forward import Forwarder, OutsideSession
from ludus.cli.turns import TurnRow
from ludus.config import Config
from ludus.gateway.transport import sdk_http_module
from ludus.rollout.tasks import Row
from ludus.types import Episode, Outcome, Turn

_TIMEOUT_S = 600.0
Shown = list[tuple[Episode, list[TurnRow]]]


def play_outside(config: Config, rows: Sequence[Row], *, url: str, api_key: str) -> Shown:
    """Each episode with its turns, as far as an outside model lets them be known."""
    agent = resolve_workflow(config.workflow, config.workflow_kwargs)
    return run_blocking(_play_all(config, agent, rows, url, api_key))


async def _play_all(config: Config, agent: AgentRun, rows: Sequence[Row], url: str, api_key: str) -> Shown:
    places = asyncio.Semaphore(config.rollout.max_concurrent_rollouts)
    with Forwarder(url, api_key) as forwarder, AgentThread() as agents:

        async def play_one(row_idx: int, sample_idx: int) -> tuple[Episode, list[TurnRow]]:
            async with places:
                base_url, started_at = forwarder.open(), time.time()
                playing = agents.submit(_play_row(agent, rows[row_idx], base_url))
                returned = await asyncio.wait_for(asyncio.wrap_future(playing), config.rollout.episode_timeout_s)
                session = forwarder.close(base_url)
                episode = _episode(f"row{row_idx:05d}", sample_idx, session, returned, started_at)
                return episode, _turn_rows(episode, session)

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(play_one(row_idx, sample_idx))
                for row_idx in range(len(rows))
                for sample_idx in range(config.gconfig.n_samples)
            ]
    return [task.result() for task in tasks]


async def _play_row(agent: AgentRun, row: Row, base_url: str) -> object:
    """What the agent returned, or the exception it raised."""
    http: Any = importlib.import_module(sdk_http_module())
    async with http.AsyncClient(timeout=_TIMEOUT_S) as client:
        try:
            return await agent.play(row, EpisodeContext(base_url=base_url, api_key="ludus", http_client=client))
        except Exception as error:  # the boundary of user code: it becomes the episode's outcome
            return error


def _episode(group_id: str, sample_idx: int, session: OutsideSession, returned: object, started_at: float) -> Episode:
    if isinstance(returned, Exception):
        lines = "".join(traceback.format_exception(returned)).rstrip().splitlines()
        scored = Scored({}, Outcome("failed", "\n".join(lines[-8:])))
    else:
        scored = score_episode(returned, session.record.turns)
    return Episode(
        id=f"{group_id}-m{sample_idx:02d}",
        task_id=group_id,
        group_id=group_id,
        session=session.record,
        rewards=scored.rewards,
        outcome=scored.outcome,
        metrics=scored.metrics,
        metadata=scored.metadata,
        started_at=started_at,
        finished_at=time.time(),
        is_eval=True,
    )


def _turn_rows(episode: Episode, session: OutsideSession) -> list[TurnRow]:
    return [_turn_row(number, turn, episode, session) for number, turn in enumerate(session.record.turns, start=1)]


def _turn_row(number: int, turn: Turn, episode: Episode, session: OutsideSession) -> TurnRow:
    reply = session.replies[turn.id]
    return TurnRow(
        number=number,
        reply=reply.message.content or "",
        num_tokens=reply.num_tokens,
        num_trained=None,
        mean_logprob=reply.mean_logprob,
        reward=episode.rewards.get(turn.id),
        advantage=None,
        note="outside model",
    )
