"""What the processes beside the head do, each in its own process: `ludus role NAME`.

Knows: which role runs what, and with which part of the configuration.  Knows not: who started the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import yaml

from ludus.agents.actors import check_actors
from ludus.api.agent import worker_door
from ludus.api.servers import KEY, server_command
from ludus.cluster.member import Brief, Member
from ludus.cluster.ranks import ROLE, follow
from ludus.config import Config
from ludus.engines import process
from ludus.engines.process import ServerPlace
from ludus.errors import BackendError, UserError
from ludus.processes.address import free_port
from ludus.rollout.worker import AGENTS, CAPACITY, RolloutWorker

Until = Callable[[], Coroutine[Any, Any, object]]
"""Returns when the process is told to end."""


def play_role(member: Member, until: Until, config_class: type[Config]) -> None:
    """Be a process of the run until it is told to end. config_class: what reads the run's configuration.

    Raises UserError for a role that there is not.
    """
    play = ROLES.get(member.name)
    if play is None:
        raise UserError(f"there is no role {member.name!r}; there are {', '.join(sorted(ROLES))}")
    brief = member.brief()
    play(member, config_class(**yaml.safe_load(brief.config)), brief, until)


def serve_engine(member: Member, config: Config, brief: Brief, until: Until) -> None:
    """One replica of the engine. Raises BackendError if its server ends by itself."""
    asyncio.run(_serve_engine(member, config, str(brief.task[KEY]), until))


async def _serve_engine(member: Member, config: Config, key: str, until: Until) -> None:
    host = member.address
    place = ServerPlace(host, free_port(host), key, seed=config.seed, index=member.index)
    with member:
        command = server_command(config, place)
        status = await process.run(command, place, on_ready=lambda: member.join(place.url), until=until())
    if status is not None:
        raise BackendError(f"the server of {member.name}-{member.index} ended with status {status}")


def train_rank(member: Member, config: Config, brief: Brief, _until: Until) -> None:
    """One rank of the trainer beside the head's; to be ended at any moment, for its state is on disk or nowhere."""
    follow(member, config, brief)


def play_rollouts(member: Member, config: Config, brief: Brief, until: Until) -> None:
    """One worker that plays agents. Raises UserError if an agent cannot be set up here."""
    asyncio.run(_play_rollouts(member, config, brief, until))


async def _play_rollouts(member: Member, config: Config, brief: Brief, until: Until) -> None:
    actors = config.rollout.actors
    check_actors(actors)
    worker = RolloutWorker(member, int(brief.task[CAPACITY]), partial(worker_door, config), actors=actors)
    working = asyncio.ensure_future(worker.work(brief.task[AGENTS]))
    asked = asyncio.ensure_future(until())
    with member:
        await asyncio.wait((working, asked), return_when=asyncio.FIRST_COMPLETED)
        for task in (working, asked):
            task.cancel()
        ended, _ = await asyncio.gather(working, asked, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended


ROLES: Mapping[str, Callable[[Member, Config, Brief, Until], None]] = {
    "engine": serve_engine,
    "rollout": play_rollouts,
    ROLE: train_rank,
}
