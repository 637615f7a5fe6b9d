"""Runs a role of a run in this process, for `ludus role NAME`.

Knows: what each role runs, and with which part of the configuration.  Knows not: what started the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import yaml

from ludus.agents.actors import check_actors
from ludus.api.agent import agent_variables, worker_agent_adapter
from ludus.api.servers import KEY, server_command
from ludus.cluster.base import KEY_VARIABLE
from ludus.cluster.ranks import ROLE, follow
from ludus.cluster.role_client import RoleClient, RoleSpec
from ludus.config import Config
from ludus.engines import process
from ludus.engines.process import ReplicaAddress
from ludus.errors import BackendError, UserError
from ludus.processes.address import free_port
from ludus.processes.environment import forget
from ludus.processes.gather import first_of
from ludus.rollout.worker import AGENTS, CAPACITY, RolloutWorker

Until = Callable[[], Coroutine[Any, Any, object]]
"""Returns when the process is told to end."""


def run_role(role_client: RoleClient, until: Until, config_class: type[Config]) -> None:
    """Run a process of the run until it is told to end. config_class: reads the run's configuration.

    Raises UserError for an unknown role.
    """
    forget(KEY_VARIABLE)  # hides the key from child processes, and from others that read this environment
    runner = ROLES.get(role_client.name)
    if runner is None:
        raise UserError(f"there is no role {role_client.name!r}; there are {', '.join(sorted(ROLES))}")
    role_spec = role_client.role_spec()
    runner(role_client, _on_own_cards(config_class(**yaml.safe_load(role_spec.config))), role_spec, until)


def _on_own_cards(config: Config) -> Config:
    """`cuda:1` is one of the head's cards; this process sees its own, and computes on the first of them."""
    if not config.model.device.startswith("cuda:"):
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"device": "cuda"})})


def serve_engine(role_client: RoleClient, config: Config, role_spec: RoleSpec, until: Until) -> None:
    """One replica of the engine. Raises BackendError if its server ends by itself."""
    host = role_client.address
    address = ReplicaAddress(host, free_port(host), str(role_spec.task[KEY]), seed=config.seed, index=role_client.index)
    command = server_command(config, address)
    with role_client:
        serving = process.run(command, address, on_ready=lambda: role_client.join(address.url), until=until())
        status = asyncio.run(serving)
    if status is not None:
        raise BackendError(f"the server of {role_client.name}-{role_client.index} ended with status {status}")


def run_rollout_worker(role_client: RoleClient, config: Config, role_spec: RoleSpec, until: Until) -> None:
    """One worker that runs agents. Raises UserError if an agent cannot be set up here."""
    actors = config.rollout.actors
    check_actors(actors)
    worker = RolloutWorker(
        role_client,
        int(role_spec.task[CAPACITY]),
        partial(worker_agent_adapter, config),
        actors=actors,
        variables=agent_variables(config),
    )
    with role_client:
        asyncio.run(first_of(worker.work(role_spec.task[AGENTS]), until()))


ROLES: Mapping[str, Callable[[RoleClient, Config, RoleSpec, Until], None]] = {
    "engine": serve_engine,
    "rollout": run_rollout_worker,
    ROLE: follow,
}
