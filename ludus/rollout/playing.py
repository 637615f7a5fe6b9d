"""Runs an agent until it returns, raises or meets its deadline.

Knows: agents, their thread, deadlines, tracebacks.  Knows not: who recorded the turns, their rewards.
Invariant: an agent's error never raises here; it is returned as a value.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future

from ludus.agents.adapter import AgentAdapter, EpisodeContext
from ludus.agents.thread import AgentThread
from ludus.episodes.outcome import Cancelled, Ending, Lost, Overdue, Raised, Returned
from ludus.processes.child import codes_of, place_of, trace_of
from ludus.types import Span

_NUM_OWN_FRAMES = 2
"""Our own frames at the start of every traceback: `guarded` and the adapter's `play`."""
_GRACE_SHARE = 0.1
"""After the deadline the model no longer answers, and the agent has this share of its timeout to return a reward."""
_MAX_GRACE_S = 5.0
_STOP_S = 0.5
"""How long an agent that is ended at its deadline may take to stop waiting, so that the outcome says for what."""


class RemoteAgentError(Exception):
    """The agent raised in another process, or was lost with it; the error's text and codes are kept unchanged."""

    def __init__(self, ending: Raised | Lost) -> None:
        super().__init__(str(ending))
        self.ending = ending


def received(
    ending: Ending, context: EpisodeContext, *, spans: Iterable[Span], agent_metrics: Mapping[str, Iterable[float]]
) -> object:
    """What an agent in another process returned; its spans and metrics are added to the episode.

    Raises RemoteAgentError if the agent raised or was lost.
    """
    for span in spans:
        context.spans.add(span)
    for name, values in agent_metrics.items():
        context.agent_metrics.setdefault(name, []).extend(values)
    if isinstance(ending, Returned):
        return ending.value
    assert isinstance(ending, Raised | Lost), "who plays elsewhere cannot say that it was late or cancelled"
    raise RemoteAgentError(ending)


async def play_to_end(
    agents: AgentThread,
    agent: AgentAdapter,
    data: Mapping[str, object],
    context: EpisodeContext,
    *,
    timeout_s: float | None,
) -> Ending:
    """Run the agent on this row; returns how it ended. Cancellation is an ending too and does not raise."""
    stopped_at: Future[str] = Future()
    playing = asyncio.wrap_future(agents.submit(guarded(agent, data, context, stopped_at)))
    try:
        await asyncio.wait({playing}, timeout=(None if timeout_s is None else timeout_s + grace_s(timeout_s)))
    except asyncio.CancelledError:
        playing.cancel()
        return Cancelled("the run ended first")
    if playing.done():
        return playing.result()
    assert timeout_s is not None, "without a timeout only an end is waited for"
    blockage = agents.blockage
    playing.cancel()
    if blockage is not None:
        return Overdue(timeout_s, blocked_by=str(blockage))
    stopped = asyncio.wrap_future(stopped_at)
    await asyncio.wait({stopped}, timeout=_STOP_S)
    return Overdue(timeout_s, blocked_by=None, waits_at=stopped.result() if stopped.done() else None)


def means(agent_metrics: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """An episode's metrics: the mean of the values counted under each name."""
    return {name: math.fsum(values) / len(values) for name, values in agent_metrics.items()}


def grace_s(timeout_s: float) -> float:
    """How long after its deadline an agent may still return its reward."""
    return min(_MAX_GRACE_S, _GRACE_SHARE * timeout_s)


async def guarded(
    agent: AgentAdapter, data: Mapping[str, object], context: EpisodeContext, stopped_at: Future[str] | None = None
) -> Ending:
    """Run the agent and return any ending as a value: even `sys.exit` must not end the thread that all agents share.

    stopped_at: gets the place in the user's code where the agent was if it is cancelled.
    """
    try:
        with context.entered():
            return Returned(await agent.play(data, context))
    except BaseException as error:  # the boundary of user code: it becomes the episode's outcome
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            if stopped_at is not None:
                stopped_at.set_result(place_of(error, num_ours=_NUM_OWN_FRAMES))
            raise
        if isinstance(error, RemoteAgentError):
            return error.ending
        return Raised(trace_of(error, num_ours=_NUM_OWN_FRAMES), codes_of(error))
