"""Rollout workers of a run: started for the agents that play in them.

Knows: the crew, the doors of agents.  Knows not: how a worker plays, or where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ludus.agents.adapter import Door
from ludus.cluster.registry import Registered
from ludus.cluster.supervise import Watch
from ludus.config import Config
from ludus.rollout.handout import SERVICE, Handout
from ludus.rollout.remote import RemoteDoor
from ludus.rollout.settings import SubprocSettings
from ludus.rollout.worker import AGENTS, CAPACITY

if TYPE_CHECKING:
    from ludus.cluster.crew import Crew


async def open_workers(config: Config, crew: Crew, doors: Sequence[Door | None]) -> None:
    """Workers for those of the doors whose agents play in them, until the crew ends; none if there is no such door.

    Raises UserError or BackendError if a worker cannot start, such as where an agent cannot be set up.
    """
    remote, agent = [door for door in doors if isinstance(door, RemoteDoor)], config.rollout.agent
    if not remote or not isinstance(agent, SubprocSettings):
        return
    handout = Handout()
    for door in remote:
        door.attach(handout)
    crew.registry.serve(SERVICE, handout.answer)

    async def joined(found: Registered) -> None:
        handout.admit(found.index, found.attempt)

    async def lost(_name: str, index: int) -> None:
        handout.lose(index)

    task = {CAPACITY: agent.subproc_max_workers, AGENTS: [door.agent.label for door in remote]}
    watch = Watch(task, on_join=joined, on_lost=lost, max_restarts=config.scheduler.max_restarts)
    for found in await crew.start("rollout", agent.workers, watch):
        await joined(found)
