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
from ludus.api.agent import worker_agent_adapter
from ludus.api.servers import KEY, server_command
from ludus.cluster.ranks import ROLE, follow
from ludus.cluster.role_client import RoleClient, RoleSpec
from ludus.config import Config
from ludus.engines import process
from ludus.engines.process import ReplicaAddress
from ludus.errors import BackendError, UserError
from ludus.processes.address import free_port
from ludus.rollout.worker import AGENTS, CAPACITY, RolloutWorker

Until = Callable[[], Coroutine[Any, Any, object]]
"""Returns when the process is told to end."""


def run_role(role_client: RoleClient, until: Until, config_class: type[Config]) -> None:
    """Be a process of the run until it is told to end. config_class: what reads the run's configuration.

    Raises UserError for a role that there is not.
    """
    runner = ROLES.get(role_client.name)
    if runner is None:
        raise UserError(f"there is no role {role_client.name!r}; there are {', '.join(sorted(ROLES))}")
    role_spec = role_client.role_spec()
    runner(role_client, config_class(**yaml.safe_load(role_spec.config)), role_spec, until)


def serve_engine(role_client: RoleClient, config: Config, role_spec: RoleSpec, until: Until) -> None:
    """One replica of the engine. Raises BackendError if its server ends by itself."""
    asyncio.run(_serve_engine(role_client, config, str(role_spec.task[KEY]), until))


async def _serve_engine(role_client: RoleClient, config: Config, key: str, until: Until) -> None:
    host = role_client.address
    address = ReplicaAddress(host, free_port(host), key, seed=config.seed, index=role_client.index)
    with role_client:
        command = server_command(config, address)
        status = await process.run(command, address, on_ready=lambda: role_client.join(address.url), until=until())
    if status is not None:
        raise BackendError(f"the server of {role_client.name}-{role_client.index} ended with status {status}")


def run_rollout_worker(role_client: RoleClient, config: Config, role_spec: RoleSpec, until: Until) -> None:
    """One worker that runs agents. Raises UserError if an agent cannot be set up here."""
    asyncio.run(_run_rollout_worker(role_client, config, role_spec, until))


async def _run_rollout_worker(role_client: RoleClient, config: Config, role_spec: RoleSpec, until: Until) -> None:
    actors = config.rollout.actors
    check_actors(actors)
    worker = RolloutWorker(
        role_client, int(role_spec.task[CAPACITY]), partial(worker_agent_adapter, config), actors=actors
    )
    working = asyncio.ensure_future(worker.work(role_spec.task[AGENTS]))
    asked = asyncio.ensure_future(until())
    with role_client:
        await asyncio.wait((working, asked), return_when=asyncio.FIRST_COMPLETED)
        for task in (working, asked):
            task.cancel()
        ended, _ = await asyncio.gather(working, asked, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended


ROLES: Mapping[str, Callable[[RoleClient, Config, RoleSpec, Until], None]] = {
    "engine": serve_engine,
    "rollout": run_rollout_worker,
    ROLE: follow,
}
