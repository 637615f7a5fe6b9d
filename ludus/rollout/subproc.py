"""Runs each episode of an agent in a process, so that the agent may block, hang, crash or print without end.

Knows: worker processes, what an agent is given and how its run ends.  Knows not: groups, training.
Invariants: an episode ends at its deadline, and its process with it; what it printed is kept with the episode; the
agent is set up once in each process, and only there.

    this process                                   a worker process
    row, base_url, api_key, about ───────────────▶ the agent plays, over HTTP
    value or traceback, spans, numbers, output ◀── however that ends
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pickle
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from ludus.agents.adapter import AgentAdapter, EpisodeContext
from ludus.agents.http_clients import SharedClients
from ludus.agents.kinds import resolve_workflow
from ludus.episodes.outcome import DEADLINE_CODE, Ending, Raised
from ludus.errors import UserError
from ludus.gateway.transport import TIMEOUT_S, sdk_http_module
from ludus.processes import calls
from ludus.processes.calls import CallEnd, RemoteFunction, WorkerCall, dumps
from ludus.processes.environment import handed_on
from ludus.processes.pool import LeasedWorker, WorkerPool
from ludus.rollout.playing import RemoteAgentError, grace_s, guarded, received
from ludus.types import Span

# Share of the grace time after which the process is killed: before the episode is given up, so that what the agent
# printed is kept.
_KILLED_AFTER_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class _Played:
    """What a process returns for one episode."""

    ending: Ending
    spans: tuple[Span, ...]
    agent_metrics: dict[str, list[float]]


class SubprocessAgentAdapter:
    """Plays episodes of one agent in worker processes, which start when they are first needed."""

    def __init__(
        self,
        workflow: object,
        kwargs: Mapping[str, Any] | None = None,
        *,
        max_workers: int,
        pool: WorkerPool | None = None,
        kinds: Mapping[str, str] | None = None,
        variables: Sequence[str] = (),
    ) -> None:
        """workflow, kwargs, kinds: as for `resolve_workflow`; the agent reaches the model over HTTP.
        pool: processes shared with others, who close them. None: `max_workers` processes of its own, which get the
        environment variables named in `variables` besides those that every program needs.

        Raises UserError if it cannot be pickled for another process, or cannot be set up there.
        """
        own_name = getattr(workflow, "__qualname__", type(workflow).__qualname__)
        self.name = workflow if isinstance(workflow, str) else str(own_name)
        pickled = dumps(workflow, "the agent"), dumps(dict(kwargs or {}), "workflow_kwargs")
        make = partial(_Player.of, *pickled, dict(kinds or {}))
        self._player = RemoteFunction.made_by(make)
        self._pool = pool or WorkerPool(max_workers, name="agents", env=handed_on(variables))
        self._owned = self._pool if pool is None else None
        self._leases: dict[str, LeasedWorker] = {}
        """By id of the running episode."""
        self._check()

    def __repr__(self) -> str:
        return f"SubprocessAgentAdapter({self.name}, {self._pool!r})"

    async def setup(self) -> None:
        """Does nothing: the agent is set up in each process when that starts."""

    async def close(self) -> None:
        """End the processes of its own."""
        if self._owned is not None:
            await asyncio.to_thread(self._owned.close)

    @asynccontextmanager
    async def place(self, episode_id: str) -> AsyncIterator[None]:
        """Reserve a process with the agent set up in it, for this episode and the length of the block."""
        async with self.lease() as lease:
            with self.placed(episode_id, lease):
                yield

    def lease(self) -> AbstractAsyncContextManager[LeasedWorker]:
        """A process with the agent set up in it, for several episodes one after the other."""
        return self._pool.lease(self._setting_up())

    async def make_ready(self, lease: LeasedWorker) -> None:
        """Make sure that the agent is set up in this process, also after a restart. Raises what the agent raises."""
        (await lease.run(self._setting_up())).result()

    @contextmanager
    def placed(self, episode_id: str, lease: LeasedWorker) -> Iterator[None]:
        """Make this process the place of the episode for the length of the block."""
        self._leases[episode_id] = lease
        try:
            yield
        finally:
            del self._leases[episode_id]

    async def play(self, data: Mapping[str, Any], context: EpisodeContext) -> object:
        """Play in the episode's process; returns what the agent returned. Raises RemoteAgentError if the agent raised
        or its process ended."""
        known = {name: getattr(context, name) for name in ("base_url", "api_key", "info", "actors")}
        call = WorkerCall.of(
            self._player,
            (dict(data),),
            known,
            timeout_s=time_left_s(context),
            env=agent_environment(context.base_url, context.api_key),
        )
        started_at = time.time()
        end = await self._leases[context.info.episode_id].run(call)
        played = end.ending.value if isinstance(end.ending, calls.Returned) else _broken(end)
        spans = (_process_span(self.name, started_at, end), *played.spans)
        return received(played.ending, context, spans=spans, agent_metrics=played.agent_metrics)

    def _setting_up(self) -> WorkerCall:
        return WorkerCall.of(self._player)

    def _check(self) -> None:
        """Set the agent up in one process, which later plays."""
        try:
            self._pool.call_blocking(self._player)
        except Exception as error:
            if self._owned is not None:
                self._owned.close()
            raise UserError(f"the agent {self.name} cannot be set up in a process of its own: {error}") from error


@runtime_checkable
class Placed(Protocol):
    """An agent adapter whose episodes need a place, such as a process, before their time begins."""

    def place(self, episode_id: str) -> AbstractAsyncContextManager[None]: ...


def process_for(agent_adapter: AgentAdapter, episode_id: str) -> AbstractAsyncContextManager[None]:
    """The place of an episode of `agent_adapter`; waits for a process if the adapter needs one, before the episode's
    time begins."""
    return agent_adapter.place(episode_id) if isinstance(agent_adapter, Placed) else nullcontext()


class _Player:
    """The agent inside a process."""

    def __init__(self, agent: AgentAdapter) -> None:
        self._agent = agent
        self._http_client: Any = None
        """None until the first episode."""
        self._clients = SharedClients()

    @classmethod
    def of(cls, workflow: bytes, kwargs: bytes, kinds: Mapping[str, str]) -> _Player:
        """Set the agent up, once in the life of the process."""
        return cls(resolve_workflow(pickle.loads(workflow), pickle.loads(kwargs), kinds=kinds, may_block=True))

    async def __call__(self, data: Mapping[str, Any] | None = None, **known: Any) -> _Played | None:
        """Play one episode; returns how it ended. data: None: only set the agent up.  known: fields of its context."""
        if data is None:
            return None
        if self._http_client is None or self._http_client.is_closed:  # agents may close it
            self._http_client = importlib.import_module(sdk_http_module()).AsyncClient(timeout=TIMEOUT_S)
        context = EpisodeContext(http_client=self._http_client, clients=self._clients, **known)
        ending = await guarded(self._agent, data, context)
        return _Played(ending, context.spans.snapshot(), context.agent_metrics)


def time_left_s(context: EpisodeContext) -> float | None:
    """How long the process may take. None: no limit. Raises RemoteAgentError if no time is left."""
    if context.deadline_at is None:
        return None
    left_s = context.deadline_at - time.monotonic()
    if left_s <= 0:
        raise RemoteAgentError(Raised("the episode's time was over before its agent began", DEADLINE_CODE))
    return left_s + _KILLED_AFTER_SHARE * grace_s(left_s)


def agent_environment(base_url: str, api_key: str) -> dict[str, str]:
    """Environment variables for SDKs that are created without arguments; this machine is reached without a proxy."""
    direct = [host for host in (os.environ.get("NO_PROXY"), "127.0.0.1", "localhost") if host]
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": api_key,
        "NO_PROXY": ",".join(direct),
    }


def _broken(end: CallEnd) -> _Played:
    """The result of an episode whose process did not return one."""
    match end.ending:
        case calls.TimedOut(timeout_s):
            what = f"the agent was still playing after {timeout_s:.1f} s; its process was killed"
            raised = Raised(_with_last_words(what, end), DEADLINE_CODE)
        case calls.Crashed(how):
            raised = Raised(_with_last_words(f"the agent's process ended in the middle of the episode: {how}", end), "")
        case calls.Raised(message, trace, codes):  # the row or the value returned could not be pickled
            raised = Raised(f"{trace}\n{message}".strip(), codes)
    return _Played(raised, (), {})


def _with_last_words(what: str, end: CallEnd) -> str:
    said = end.output.stderr.strip().splitlines()[-3:]
    return what + ("".join(f"\n  {line}" for line in ["stderr:", *said]) if said else "")


def _process_span(name: str, started_at: float, end: CallEnd) -> Span:
    """The span of an episode's process, with what it printed."""
    output = end.output
    return Span(
        kind="process",
        name=name,
        started_at=started_at,
        finished_at=time.time(),
        outputs={"stdout": output.stdout, "stderr": output.stderr, "num_bytes": output.num_bytes},
        error=None if isinstance(end.ending, calls.Returned) else type(end.ending).__name__,
    )
