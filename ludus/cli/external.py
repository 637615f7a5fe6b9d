"""Episodes with a model behind somebody else's URL.

Knows: agents, the recording proxy.  Knows not: tokens, engines; nothing here can be trained on.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ludus.agents.adapter import EpisodeContext, EpisodeInfo
from ludus.agents.http_clients import SharedClients
from ludus.agents.thread import AgentThread
from ludus.api.agent import choose_agent
from ludus.cli.proxy import ExternalSession, RecordingProxy
from ludus.cli.turns import TurnRow
from ludus.compat.config import Config
from ludus.episodes.episode import finish
from ludus.episodes.handle import SessionSpec
from ludus.episodes.limits import Limits
from ludus.gateway.transport import sdk_http_module
from ludus.processes.blocking import run_blocking
from ludus.rollout.playing import means, play_to_end
from ludus.rollout.subproc import process_for
from ludus.rollout.tasks import Row
from ludus.settings import Idle, acting
from ludus.types import Episode

_TIMEOUT_S = 600.0
OnEpisode = Callable[[Episode, Sequence[TurnRow]], None]


def play_external(config: Config, rows: Sequence[Row], *, url: str, api_key: str, on_episode: OnEpisode) -> None:
    """Play every row; `on_episode` gets each episode as it ends, with its turns as far as they can be known.

    Settings that do not act on an outside model are named in a warning.
    """
    config = acting(config, list(_idle(config)))
    run_blocking(_Outside(config, url, api_key, on_episode).play_all(rows))


def _idle(config: Config) -> Iterator[Idle]:
    if config.rollout.max_tokens is not None:
        yield Idle(
            "rollout.max_tokens",
            "a model behind a URL does not say for sure how many tokens it sampled; rollout.max_turns limits calls",
        )
    for name in type(config.gconfig).model_fields:
        if name != "n_samples" and config.gconfig.is_set(name):
            yield Idle(f"gconfig.{name}", "with --url the agent's requests are passed on as they are")


class _Outside:
    """Plays the configured agent with the model behind `url`."""

    def __init__(self, config: Config, url: str, api_key: str, on_episode: OnEpisode) -> None:
        self._config = config
        self._agent = choose_agent(config, None, None)
        self._proxy = RecordingProxy(url, api_key)
        self._agents = AgentThread()
        self._shared = SharedClients()
        self._on_episode = on_episode
        self._slots = asyncio.Semaphore(config.rollout.max_concurrent_rollouts)

    async def play_all(self, rows: Sequence[Row]) -> None:
        with self._proxy, self._agents:
            async with self._agents.hosting(self._agent), asyncio.TaskGroup() as group:
                for row_idx, row in enumerate(rows):
                    for sample_idx in range(self._config.gconfig.n_samples):
                        group.create_task(self._play_one(row, f"row{row_idx:05d}", sample_idx))
            self._agents.submit(self._shared.aclose())

    async def _play_one(self, row: Row, group_id: str, sample_idx: int) -> None:
        settings = self._config.rollout
        info = EpisodeInfo(f"{group_id}-m{sample_idx:02d}", group_id, group_id, is_eval=True)
        async with self._slots, process_for(self._agent, info.episode_id):
            started_at, timeout_s = time.time(), settings.episode_timeout_s
            deadline_at = None if timeout_s is None else time.monotonic() + timeout_s
            base_url = self._proxy.open(Limits(max_turns=settings.max_turns, deadline_at=deadline_at))
            http: Any = importlib.import_module(sdk_http_module())
            client = http.AsyncClient(timeout=_TIMEOUT_S)
            context = EpisodeContext(
                base_url,
                "ludus",
                client,
                info=info,
                deadline_at=deadline_at,
                clients=self._shared,
                actors=settings.actors,
            )
            ending = await play_to_end(self._agents, self._agent, row, context, timeout_s=timeout_s)
            self._agents.submit(client.aclose())  # nobody waits: the agent may block its thread still
            session = self._proxy.close(base_url)
        episode = finish(
            SessionSpec(info.episode_id, group_id=group_id, is_eval=True),
            session.record,
            ending,
            started_at=started_at,
            refused=session.refused,
            metrics=means(context.agent_metrics),
            spans=context.spans.snapshot(),
        )
        self._on_episode(episode, [*_turn_rows(episode, session)])


def _turn_rows(episode: Episode, session: ExternalSession) -> Iterator[TurnRow]:
    for number, turn in enumerate(session.record.turns, start=1):
        reply = session.replies[turn.id]
        yield TurnRow(
            number=number,
            reply=reply.message.content or "",
            num_tokens=reply.num_tokens,
            num_trained=None,
            mean_logprob=reply.mean_logprob,
            reward=episode.rewards.get(turn.id),
            advantage=None,
            note="outside model",
        )
