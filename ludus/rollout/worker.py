"""A worker of a run: gets episodes from the head over HTTP, plays each in its own process, and reports how it ended.

Knows: the head's work queue, the adapter for agents in processes.  Knows not: sessions, rewards, who placed it.
Invariants: a slot is offered only while its process is ready, so that set-up never counts as an episode's time; an
episode that the head cancels ends here, with its process; a report is sent until the head has received it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import httpx

from ludus.agents.adapter import EpisodeContext
from ludus.agents.settings import ActorSettings
from ludus.episodes.outcome import Raised
from ludus.errors import BackendError
from ludus.http.status import PASSING
from ludus.processes.environment import handed_on
from ludus.processes.gather import first_of
from ludus.processes.pool import LeasedWorker, WorkerPool
from ludus.rollout.playing import guarded
from ludus.rollout.remote import AgentName
from ludus.rollout.subproc import SubprocessAgentAdapter
from ludus.rollout.wire import AssignmentBody, ReportBody, TakeBody, TakenBody, ending_fields
from ludus.rollout.work_queue import SERVICE, TAKE_S
from ludus.runs.codec import span_fields

logger = logging.getLogger(__name__)

CAPACITY = "capacity"
"""Key in the worker's task: how many episodes it plays at the same time. `agents`: labels of the agents to set up."""
AGENTS = "agents"
# A busy head answers late; a head that is gone is noticed by the heartbeats.
AGAIN_S = 0.5
# Resending the same body only helps against passing faults, such as a head short of file handles or disk; after half a
# minute it is given up.
MAX_FAILED = 60
MakeAgentAdapter = Callable[[AgentName, WorkerPool], SubprocessAgentAdapter]


class RoleClient(Protocol):
    """This process's connection to the head of its run."""

    @property
    def head_url(self) -> str: ...
    @property
    def key(self) -> str:
        """The key of this process."""

    @property
    def index(self) -> int: ...
    @property
    def attempt(self) -> int:
        """How often this process was started before."""

    def join(self) -> None:
        """Report ready. Raises BackendError if the head cannot be reached, or knows another process by this index."""


class _RefusedError(BackendError):
    """The head was reached and refused the request."""


class RolloutWorker:
    """Plays what the head dispatches, from `join` to the end of the process."""

    def __init__(
        self,
        role_client: RoleClient,
        capacity: int,
        make_agent_adapter: MakeAgentAdapter,
        *,
        actors: Mapping[str, ActorSettings] | None = None,
        variables: Sequence[str] = (),
    ) -> None:
        """actors: other models that take part in the episodes. None: there are none.

        variables: environment variables that agents get besides those that every program needs.
        """
        self._member = role_client
        self._capacity = capacity
        self._make_agent_adapter = make_agent_adapter
        self._actors = actors or {}
        self._pool = WorkerPool(capacity, name="agents", env=handed_on(variables))
        self._agent_adapters: dict[str, SubprocessAgentAdapter] = {}
        self._playing: dict[str, asyncio.Task[None]] = {}
        self._free: list[tuple[LeasedWorker, asyncio.Event]] = []
        """Ready processes, each with the event that is set when the episode played in it has ended."""
        self._changed = asyncio.Event()
        """Set when a slot has become free."""
        self._numbers = itertools.count()
        """Numbers of the requests for episodes."""

    def __repr__(self) -> str:
        return f"RolloutWorker({self._member!r}, playing={len(self._playing)} of {self._capacity})"

    def prepare(self, label: str) -> SubprocessAgentAdapter:
        """The adapter of an agent, which is set up first; blocks. Raises UserError if that fails."""
        if label not in self._agent_adapters:
            self._agent_adapters[label] = self._make_agent_adapter(AgentName.of_label(label), self._pool)
        return self._agent_adapters[label]

    async def work(self, agents: Sequence[str]) -> None:
        """Set these agents up, join the run, and play until cancelled. Raises UserError if one cannot be set up."""
        headers = {"authorization": f"Bearer {self._member.key}"}
        url, timeout = f"{self._member.head_url}/serve/{SERVICE}", httpx.Timeout(2 * TAKE_S)
        try:
            for label in agents:
                await asyncio.to_thread(self.prepare, label)
            await asyncio.to_thread(self._member.join)
            async with (
                httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, trust_env=False) as http,
                asyncio.TaskGroup() as group,
            ):
                for _ in range(self._capacity):
                    group.create_task(self._keep_slot())
                while True:
                    await self._take(http, group)
        finally:
            await asyncio.to_thread(self._pool.close)

    # ---- inside

    async def _take(self, http: httpx.AsyncClient, group: asyncio.TaskGroup) -> None:
        """Ask for episodes once, and start them; ends the request early when a slot becomes free."""
        self._changed.clear()
        answer = await first_of(self._ask(http, "take", self._wanted), self._changed.wait())
        # an answer on its way when a slot became free is not lost: the head sends it again
        if not isinstance(answer, bytes):
            return
        taken = TakenBody.of_json(answer)
        for assignment_id in taken.cancelled:
            if assignment_id in self._playing:
                self._playing[assignment_id].cancel()
        for assignment in taken.assignments:
            work = self._play_and_report(http, assignment, *self._free.pop())
            self._playing[assignment.assignment_id] = group.create_task(work, name=assignment.assignment_id)

    def _wanted(self) -> str:
        """A request for episodes, built from the current state. A resent request has a new number: both may arrive."""
        return TakeBody(
            index=self._member.index,
            attempt=self._member.attempt,
            free=len(self._free),
            has=list(self._playing),
            number=next(self._numbers),
        ).to_json()

    async def _keep_slot(self) -> None:
        """Run one slot, offered only while its process has all agents set up: an episode's clock starts with it."""
        agent_adapters = list(self._agent_adapters.values())
        async with agent_adapters[0].lease() as lease:
            while True:
                for agent_adapter in agent_adapters:
                    await agent_adapter.make_ready(lease)
                was_used = asyncio.Event()
                self._free.append((lease, was_used))
                self._changed.set()
                await was_used.wait()

    async def _play_and_report(
        self, http: httpx.AsyncClient, assignment: AssignmentBody, lease: LeasedWorker, was_used: asyncio.Event
    ) -> None:
        """Play one assignment and report its end. Cancelled when the head cancels the assignment."""
        try:
            report = await self._play(assignment, lease)
            try:
                await self._ask(http, "end", lambda: report)
            except _RefusedError as refused:
                raised = Raised(f"the head did not take what the episode ended with: {refused}", "")
                refusal = self._report(assignment, **ending_fields(raised))
                await self._ask(http, "end", lambda: refusal)
        finally:
            del self._playing[assignment.assignment_id]
            was_used.set()

    async def _play(self, assignment: AssignmentBody, lease: LeasedWorker) -> str:
        """Play one assignment; returns the report as JSON."""
        agent_adapter = await asyncio.to_thread(self.prepare, assignment.agent)
        received_at = time.monotonic()
        context = EpisodeContext(
            assignment.base_url,
            assignment.api_key,
            None,
            info=assignment.info,
            deadline_at=None if assignment.left_s is None else received_at + assignment.left_s,
            actors=self._actors,
        )
        with agent_adapter.placed(assignment.info.episode_id, lease):
            ending = await guarded(agent_adapter, assignment.data, context)
        try:
            spans = [span_fields(span) for span in context.spans.snapshot()]
            return self._report(assignment, spans=spans, agent_metrics=context.agent_metrics, **ending_fields(ending))
        except Exception as error:  # the boundary of an agent's values: one that cannot be sent is its episode's fault
            raised = Raised(f"what the agent left cannot be sent to the head: {error!r:.1000}", "")
            return self._report(assignment, **ending_fields(raised))

    def _report(self, assignment: AssignmentBody, **ended: Any) -> str:
        role_client = self._member
        return ReportBody(
            index=role_client.index, attempt=role_client.attempt, assignment_id=assignment.assignment_id, **ended
        ).to_json()

    async def _ask(self, http: httpx.AsyncClient, path: str, body: Callable[[], str]) -> bytes:
        """The head's answer, retrying until it is reached. Raises _RefusedError if the head refuses the body."""
        num_failed = 0
        while True:
            try:
                response = await http.post(f"/{path}", content=body())
            except httpx.RequestError as error:
                why = str(error) or type(error).__name__
            else:
                if response.is_success:
                    return response.content
                why = f"{response.status_code} {response.text[:500]}"
                num_failed += 1
                passes = response.is_server_error or response.status_code in PASSING
                if not passes or num_failed == MAX_FAILED:
                    raise _RefusedError(f"the head at {self._member.head_url} answers {path} with {why}")
            logger.warning("the head does not answer: %s; asking again", why)
            await asyncio.sleep(AGAIN_S)
