"""Plays episodes with an external model at a URL; they cannot be trained on.

Knows: agents, the recording proxy.  Knows not: tokens, engines.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ludus.agents.adapter import AgentAdapter, EpisodeContext, EpisodeInfo
from ludus.agents.http_clients import SharedClients
from ludus.agents.thread import AgentThread
from ludus.api.agent import choose_agent
from ludus.api.play import tasks_of
from ludus.cli.proxy import ExternalReply, RecordingProxy
from ludus.cli.turns import TurnRow
from ludus.compat.config import Config
from ludus.episodes.episode import finish
from ludus.episodes.limits import Limits
from ludus.episodes.spec import SessionSpec
from ludus.gateway.transport import sdk_http_module
from ludus.processes.blocking import run_blocking
from ludus.processes.gather import gather
from ludus.rollout.mixture import Row
from ludus.rollout.playing import means, play_to_end
from ludus.rollout.subproc import process_for
from ludus.rollout.tasks import EpisodeTask
from ludus.settings import Idle, acting
from ludus.types import Episode

_TIMEOUT_S = 600.0
OnEpisode = Callable[[Episode, Sequence[TurnRow]], None]


def play_external(config: Config, rows: Sequence[Row], *, url: str, api_key: str, on_episode: OnEpisode) -> None:
    """Play every row; `on_episode` is called with each finished episode and what is known of its turns.

    A warning names the settings that have no effect on an external model.
    """
    config = acting(config, list(_idle(config)))
    run_blocking(_play_all(config, choose_agent(config, None, None), rows, RecordingProxy(url, api_key), on_episode))


def _idle(config: Config) -> Iterator[Idle]:
    if config.rollout.max_tokens is not None:
        yield Idle(
            "rollout.max_tokens",
            "a model behind a URL does not show for sure how many tokens it sampled; rollout.max_turns limits calls",
        )
    for name in type(config.gconfig).model_fields:
        if name != "n_samples" and config.gconfig.is_set(name):
            yield Idle(f"gconfig.{name}", "with --url the agent's requests are passed on as they are")


async def _play_all(
    config: Config, agent: AgentAdapter, rows: Sequence[Row], proxy: RecordingProxy, on_episode: OnEpisode
) -> None:
    agents, shared = AgentThread(), SharedClients()
    timeout_s = config.rollout.episode_timeout_s
    http: Any = importlib.import_module(sdk_http_module())

    async def play(task: EpisodeTask) -> None:
        info = EpisodeInfo(task.episode_id, task.task_id, task.group_id, is_eval=True)
        async with process_for(agent, info.episode_id):
            started_at = time.time()
            deadline_at = None if timeout_s is None else time.monotonic() + timeout_s
            url = proxy.open(Limits(max_turns=config.rollout.max_turns, deadline_at=deadline_at))
            client, actors = http.AsyncClient(timeout=_TIMEOUT_S), config.rollout.actors
            known: dict[str, Any] = {"info": info, "deadline_at": deadline_at, "clients": shared, "actors": actors}
            context = EpisodeContext(url, "ludus", client, **known)
            ending = await play_to_end(agents, agent, task.data, context, timeout_s=timeout_s)
            agents.submit(client.aclose())  # not awaited, because the agent may still block its thread
            session = proxy.close(url)
        episode = finish(
            SessionSpec(info.episode_id, info.task_id, info.group_id, is_eval=True),
            session.graph.snapshot(),
            ending,
            started_at=started_at,
            refused=session.refused,
            metrics=means(context.agent_metrics),
            spans=context.spans.snapshot(),
        )
        on_episode(episode, _turn_rows(episode, session.replies))

    with proxy, agents:
        async with agents.hosting(agent):
            await gather(play, tasks_of(config, rows), at_once=config.rollout.max_concurrent_rollouts)
        agents.submit(shared.aclose())


def _turn_rows(episode: Episode, replies: Mapping[str, ExternalReply]) -> list[TurnRow]:
    return [
        TurnRow(
            number=number,
            reply=turn.reply.content or "",
            num_tokens=replies[turn.id].num_tokens,
            mean_logprob=replies[turn.id].mean_logprob,
            reward=episode.rewards.get(turn.id),
            note="outside model",
        )
        for number, turn in enumerate(episode.session.turns, start=1)
    ]
