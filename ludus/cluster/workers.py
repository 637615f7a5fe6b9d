"""Starts the rollout workers of a run, for the agents that run in them.

Knows: the cluster, agent adapters.  Knows not: how a worker runs them, or where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ludus.agents.adapter import AgentAdapter
from ludus.cluster.registry import Registered
from ludus.cluster.supervise import SupervisionPolicy
from ludus.config import Config
from ludus.rollout.remote import RemoteAgentAdapter
from ludus.rollout.settings import SubprocSettings
from ludus.rollout.work_queue import SERVICE, WorkQueue
from ludus.rollout.worker import AGENTS, CAPACITY

if TYPE_CHECKING:
    from ludus.cluster.cluster import Cluster


async def open_workers(config: Config, cluster: Cluster, agent_adapters: Sequence[AgentAdapter | None]) -> None:
    """Start workers, until the cluster ends, if any of the agents runs in them.

    Raises UserError or BackendError if a worker cannot start, for instance because an agent cannot be set up.
    """
    remote, agent = [each for each in agent_adapters if isinstance(each, RemoteAgentAdapter)], config.rollout.agent
    if not remote or not isinstance(agent, SubprocSettings):
        return
    work_queue = WorkQueue()
    for agent_adapter in remote:
        agent_adapter.attach(work_queue)
    cluster.registry.serve(SERVICE, work_queue.answer)
    cluster.on_close(work_queue.close)

    async def joined(found: Registered) -> None:
        work_queue.admit(found.index, found.attempt)

    async def lost(_name: str, index: int) -> None:
        work_queue.lose(index)

    task = {CAPACITY: agent.subproc_max_workers, AGENTS: [agent_adapter.agent.label for agent_adapter in remote]}
    policy = SupervisionPolicy(task, on_join=joined, on_lost=lost, max_restarts=config.scheduler.max_restarts)
    for found in await cluster.start("rollout", agent.workers, policy):
        await joined(found)
