"""The head's adapter for an agent that plays in workers of the run, which may be on other machines.

Knows: import strings, assignments and reports.  Knows not: where the workers are, how they play.
Invariants: an agent is sent by name, never as code; an episode whose worker is lost ends as `lost`, which does not
count as a failure of its agent.
"""

from __future__ import annotations

import inspect
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.agents.adapter import EpisodeContext
from ludus.episodes.outcome import Lost
from ludus.errors import InternalError, UserError
from ludus.rollout.playing import RemoteAgentError, received
from ludus.rollout.wire import assignment_body, json_fault
from ludus.rollout.work_queue import WorkQueue


@dataclass(frozen=True, slots=True)
class AgentName:
    """An agent, named so that a worker can import it."""

    reference: str
    """'pkg.mod:Name' or '/path/to/file.py:Name'. '': the agent that the configuration's `config_class` makes."""
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, workflow: object, kwargs: Mapping[str, Any] | None) -> AgentName:
        """Raises UserError if the agent cannot be imported by name, or an argument cannot be sent."""
        if (fault := json_fault(kwargs)) is not None:
            raise UserError(f"workflow_kwargs cannot be sent to rollout workers as JSON: {fault}")
        return cls(_reference(workflow), dict(kwargs or {}))

    @classmethod
    def of_label(cls, label: str) -> AgentName:
        reference, kwargs = json.loads(label)
        return cls(reference, kwargs)

    @property
    def label(self) -> str:
        """Name and arguments in one string."""
        return json.dumps([self.reference, self.kwargs], sort_keys=True)


class RemoteAgentAdapter:
    """Plays episodes of one agent in the workers of a run, once attached to the run."""

    def __init__(self, agent: AgentName) -> None:
        self.agent = agent
        self.name = agent.reference or "the agent of config_class"
        self._run: WorkQueue | None = None
        """None until it is attached to a run."""
        self._numbers = itertools.count()

    def __repr__(self) -> str:
        return f"RemoteAgentAdapter({self.name}, {self._run!r})"

    def attach(self, work_queue: WorkQueue) -> None:
        self._run = work_queue

    @property
    def _work_queue(self) -> WorkQueue:
        if self._run is None:
            raise InternalError(f"the agent {self.name} plays in workers, and was attached to none")
        return self._run

    async def setup(self) -> None:
        """Does nothing: each worker sets the agent up itself."""

    async def close(self) -> None:
        """Does nothing: the workers end with the run."""

    @asynccontextmanager
    async def place(self, _episode_id: str) -> AsyncIterator[None]:
        """Reserve a slot of some worker for the length of the block."""
        await self._work_queue.acquire_slot()
        try:
            yield
        finally:
            self._work_queue.release_slot()

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """What the agent returned. Raises RemoteAgentError if the agent raised or its worker was lost."""
        assignment_id = f"{context.info.episode_id}.{next(self._numbers)}"
        left_s = None if context.deadline_at is None else max(0.0, context.deadline_at - time.monotonic())
        assignment = assignment_body(
            assignment_id, self.agent.label, data, context.base_url, context.api_key, context.info, left_s
        )
        report = await self._work_queue.play(assignment)
        if report is None:
            raise RemoteAgentError(Lost("the rollout worker that played the episode was lost"))
        spans, agent_metrics = report.read_spans(), report.agent_metrics
        return received(report.read_ending(), context, spans=spans, agent_metrics=agent_metrics)


def _reference(workflow: object) -> str:
    if isinstance(workflow, str):
        file, colon, name = workflow.partition(":")
        return f"{Path(file).resolve()}:{name}" if colon and file.endswith(".py") else workflow
    if not (inspect.isclass(workflow) or inspect.isfunction(workflow)):
        raise UserError(
            f"the agent is {workflow!r:.100}, an object of this process; rollout workers find an agent by its name: "
            "pass its class, its function or its import string, and what it is made with as workflow_kwargs"
        )
    module, name = workflow.__module__, workflow.__qualname__
    if "<locals>" in name:
        raise UserError(
            f"{name} is defined inside a function, where rollout workers cannot find it; move it to a module"
        )
    if module != "__main__":
        return f"{module}:{name}"
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        raise UserError(f"{name} is defined in this session, where rollout workers cannot find it; put it into a file")
    return f"{Path(script).resolve()}:{name}"
