"""How an agent's run ends, and what outcome that is.

Knows: agents, their thread, deadlines, tracebacks.  Knows not: who recorded the turns.
Invariant: an agent's fault never raises here; it is a value.
"""

from __future__ import annotations

import asyncio
import math
import sysconfig
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ludus.agents.adapter import Door, EpisodeContext
from ludus.agents.thread import AgentThread
from ludus.episodes.limits import LIMIT_CODES
from ludus.episodes.reward import Scored, score_episode
from ludus.types import Episode, Outcome, SessionRecord, Span, Turn

_DEADLINE_CODE = "deadline"
_MAX_FRAMES = 4
_MAX_CAUSES = 8
_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NUM_OWN_FRAMES = 2
"""Frames that every traceback begins with: `guarded` and the door's `play`."""
_GRACE_SHARE = 0.1
"""After the deadline the model no longer answers; the agent then has this share of its time to give its reward."""
_MAX_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Returned:
    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    trace: str
    """The last of the user's own frames, and the error."""
    codes: str
    """Codes and messages of the error and of those that caused it."""


@dataclass(frozen=True, slots=True)
class Overdue:
    timeout_s: float
    blocked_by: str | None
    """What blocks the agents' event loop. None: nothing does, the agent waits for something."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    pass


@dataclass(frozen=True, slots=True)
class Lost:
    """What played the agent is gone."""

    reason: str


Ending = Returned | Raised | Overdue | Cancelled | Lost


class EndedElsewhereError(Exception):
    """The agent raised in another process, or was lost with it; what is known of that is kept as it was there."""

    def __init__(self, ending: Raised | Lost) -> None:
        super().__init__(str(ending))
        self.ending = ending


async def play_to_end(
    agents: AgentThread,
    agent: Door,
    data: Mapping[str, object],
    context: EpisodeContext,
    *,
    timeout_s: float | None,
) -> Ending:
    """How the agent's run on this row ended. Cancelling is an ending too, and does not raise."""
    playing = asyncio.wrap_future(agents.submit(guarded(agent, data, context)))
    try:
        await asyncio.wait({playing}, timeout=_patience_s(timeout_s))
    except asyncio.CancelledError:
        playing.cancel()
        return Cancelled()
    if playing.done():
        return playing.result()
    assert timeout_s is not None, "without a timeout only an end is waited for"
    blockage = agents.blockage
    playing.cancel()
    return Overdue(timeout_s, blocked_by=None if blockage is None else str(blockage))


def score_ending(ending: Ending, turns: Sequence[Turn], refused: Collection[str]) -> Scored:
    """What the episode is worth. refused: codes of the errors with which the agent's requests were refused."""
    limits = [code for code in LIMIT_CODES if code in refused]
    match ending:
        case Returned(value):
            scored = score_episode(value, turns)
            return replace(scored, outcome=_truncated(limits)) if scored.outcome.kind == "ok" and limits else scored
        case Raised(trace, codes):
            return Scored({}, _outcome_of_error(trace, codes, limits))
        case Overdue(timeout_s, blocked_by):
            reason = f"the agent took longer than rollout.episode_timeout_s={timeout_s}"
            return Scored({}, Outcome("timeout", reason + (f"; {blocked_by}" if blocked_by else "")))
        case Cancelled():
            return Scored({}, Outcome("cancelled", "the run ended first"))
        case Lost(reason):
            return Scored({}, Outcome("lost", reason))


def ended_episode(
    scored: Scored,
    record: SessionRecord,
    *,
    episode_id: str,
    task_id: str,
    group_id: str,
    started_at: float,
    is_eval: bool,
    spans: tuple[Span, ...] = (),
    numbers: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> Episode:
    """The episode that ends now with this score. numbers: their means are metrics, unless the agent returned them."""
    counted = {name: math.fsum(values) / len(values) for name, values in numbers.items()}
    return Episode(
        id=episode_id,
        task_id=task_id,
        group_id=group_id,
        session=record,
        rewards=scored.rewards,
        outcome=scored.outcome,
        reward=scored.reward,
        metrics={**counted, **scored.metrics},
        metadata=scored.metadata,
        started_at=started_at,
        finished_at=time.time(),
        is_eval=is_eval,
        left_out=scored.left_out,
        spans=spans,
        has_returns=scored.are_returns,
    )


def grace_s(timeout_s: float) -> float:
    """How long after its deadline an agent may still return its reward."""
    return min(_MAX_GRACE_S, _GRACE_SHARE * timeout_s)


async def guarded(agent: Door, data: Mapping[str, object], context: EpisodeContext) -> Ending:
    """However the agent ends, as a value; `sys.exit` in an agent must not end the thread of all agents."""
    try:
        with context.entered():
            return Returned(await agent.play(data, context))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _raised(error)
    except BaseException as error:  # the boundary of user code: it becomes the episode's outcome
        return _raised(error)


def _raised(error: BaseException) -> Raised | Lost:
    if isinstance(error, EndedElsewhereError):
        return error.ending
    codes: list[str] = []
    at: BaseException | None = error
    while at is not None and len(codes) < _MAX_CAUSES:
        codes.append(f"{getattr(at, 'code', '')} {at}")  # SDKs keep the typed code of an HTTP error in `code`
        at = at.__cause__ or at.__context__
    trace = traceback.TracebackException.from_exception(error)
    frames = trace.stack[_NUM_OWN_FRAMES:]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARY_FOLDERS)]
    trace.stack[:] = own[-_MAX_FRAMES:] or frames[-_MAX_FRAMES:]
    return Raised(trace="".join(trace.format(chain=False)).rstrip(), codes="\n".join(codes))


def _outcome_of_error(trace: str, codes: str, limits: list[str]) -> Outcome:
    met = [code for code in limits if code in codes]
    if met:
        return Outcome("truncated", f"the agent raised because it had met a limit ({', '.join(met)}):\n{trace}")
    if _DEADLINE_CODE in codes.split():
        return Outcome("timeout", f"the episode's time was used up:\n{trace}")
    return Outcome("failed", trace)


def _truncated(limits: list[str]) -> Outcome:
    return Outcome("truncated", f"the agent met a limit ({', '.join(limits)}) and ended")


def _patience_s(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else timeout_s + grace_s(timeout_s)
