"""One episode, from its row to its record: the agent plays, and however that ends becomes an Episode.

Knows: agents, sessions, deadlines.  Knows not: groups, advantages, training.
Invariants: an agent's fault never raises here, it is the episode's outcome; every token sampled for the episode is in
its record; the episode has been kept when `run` returns.

    returned ─▶ ok · rejected · failed · truncated (it had met a limit)
    raised   ─▶ failed · truncated (because of a limit) · timeout (because of the deadline)
    deadline ─▶ timeout              cancelled from outside ─▶ cancelled
"""

from __future__ import annotations

import asyncio
import sysconfig
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ludus.agents.reward import Scored, score_episode
from ludus.agents.workflow import AgentRun, EpisodeContext
from ludus.record.limits import Limits
from ludus.record.recorder import RecordedSession
from ludus.rollout.settings import GenerationSettings, RolloutSettings
from ludus.rollout.stage import Stage
from ludus.rollout.tasks import EpisodeTask
from ludus.types import Episode, Outcome, SessionRecord

Keep = Callable[[Episode, int | None], None]
"""Makes an episode durable; called on a thread that may block. The step is the one that asked for it."""

# Sampling fields that training must know to be those of the model's own distribution.
PINNED_IN_TRAINING = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_DEADLINE_CODE = "deadline"
_LIMIT_CODES = ("turn_limit", "token_limit", "context_length_exceeded")
_MAX_FRAMES = 4
_MAX_CAUSES = 8
_LIBRARY_FOLDERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NUM_OWN_FRAMES = 2
"""Frames that every traceback begins with: `_guarded` and `AgentRun.play`."""
_GRACE_SHARE = 0.1
"""After the deadline the model no longer answers; the agent then has this share of its time to give its reward."""
_MAX_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class _Returned:
    value: object


@dataclass(frozen=True, slots=True)
class _Raised:
    trace: str
    """The last of the user's own frames, and the error."""
    codes: str
    """Codes and messages of the error and of those that caused it."""


@dataclass(frozen=True, slots=True)
class _Overdue:
    blocked_by: str | None
    """What blocks the agents' event loop. None: nothing does, the agent waits for something."""


@dataclass(frozen=True, slots=True)
class _Cancelled:
    pass


_Ending = _Returned | _Raised | _Overdue | _Cancelled


class EpisodeRunner:
    """Plays episodes of one agent on one stage."""

    def __init__(
        self,
        agent: AgentRun,
        stage: Stage,
        settings: RolloutSettings,
        *,
        training: GenerationSettings,
        evaluation: GenerationSettings,
        keep: Keep | None = None,
    ) -> None:
        self._agent = agent
        self._stage = stage
        self._settings = settings
        self._training = training
        self._evaluation = evaluation
        self._keep = keep

    def __repr__(self) -> str:
        return f"EpisodeRunner({self._agent.name}, {self._stage!r})"

    async def run(self, task: EpisodeTask) -> Episode:
        """The finished episode, kept. Cancelling ends it with outcome `cancelled` instead of raising."""
        started_at = time.time()
        session = self._open(task)
        with self._stage.seat(session) as context:
            ending = await self._play(task, context)
            record = await session.aclose(type(ending).__name__.strip("_").lower())
        scored = _score(ending, session, record, self._settings)
        episode = Episode(
            id=task.episode_id,
            task_id=task.task_id,
            group_id=task.group_id,
            session=record,
            rewards=scored.rewards,
            outcome=scored.outcome,
            metrics=scored.metrics,
            metadata=scored.metadata,
            started_at=started_at,
            finished_at=time.time(),
            is_eval=task.is_eval,
        )
        if self._keep is not None:
            await asyncio.to_thread(self._keep, episode, task.step)
        return episode

    def _open(self, task: EpisodeTask) -> RecordedSession:
        settings, generation = self._settings, self._evaluation if task.is_eval else self._training
        timeout_s = settings.episode_timeout_s
        return self._stage.recorder.open(
            session_id=task.episode_id,
            group_id=task.group_id,
            limits=Limits(
                max_turns=settings.max_turns,
                max_tokens=settings.max_tokens,
                deadline_at=None if timeout_s is None else time.monotonic() + timeout_s,
            ),
            sampling=generation.sampling(seed=task.seed),
            pinned=() if task.is_eval else PINNED_IN_TRAINING,
        )

    async def _play(self, task: EpisodeTask, context: EpisodeContext) -> _Ending:
        playing = asyncio.wrap_future(self._stage.agents.submit(_guarded(self._agent, task.data, context)))
        try:
            await asyncio.wait({playing}, timeout=_patience_s(self._settings.episode_timeout_s))
        except asyncio.CancelledError:
            playing.cancel()
            return _Cancelled()
        if playing.done():
            return playing.result()
        blockage = self._stage.agents.blockage
        playing.cancel()
        return _Overdue(blocked_by=None if blockage is None else str(blockage))


async def _guarded(agent: AgentRun, data: Mapping[str, object], context: EpisodeContext) -> _Ending:
    """However the agent ends, as a value; `sys.exit` in an agent must not end the thread of all agents."""
    try:
        return _Returned(await agent.play(data, context))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return _raised(error)
    except BaseException as error:  # the boundary of user code: it becomes the episode's outcome
        return _raised(error)


def _raised(error: BaseException) -> _Raised:
    codes: list[str] = []
    at: BaseException | None = error
    while at is not None and len(codes) < _MAX_CAUSES:
        codes.append(f"{getattr(at, 'code', '')} {at}")  # SDKs keep the typed code of an HTTP error in `code`
        at = at.__cause__ or at.__context__
    trace = traceback.TracebackException.from_exception(error)
    frames = trace.stack[_NUM_OWN_FRAMES:]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARY_FOLDERS)]
    trace.stack[:] = own[-_MAX_FRAMES:] or frames[-_MAX_FRAMES:]
    return _Raised(trace="".join(trace.format(chain=False)).rstrip(), codes="\n".join(codes))


def _score(ending: _Ending, session: RecordedSession, record: SessionRecord, settings: RolloutSettings) -> Scored:
    refused = session.stats().refused
    limits = [code for code in _LIMIT_CODES if code in refused]
    match ending:
        case _Returned(value):
            scored = score_episode(value, record.turns)
            if scored.outcome.kind == "ok" and limits:
                return Scored(scored.rewards, _truncated(limits), scored.metrics, scored.metadata)
            return scored
        case _Raised(trace, codes):
            return Scored({}, _outcome_of_error(trace, codes, limits))
        case _Overdue(blocked_by):
            reason = f"the agent took longer than rollout.episode_timeout_s={settings.episode_timeout_s}"
            return Scored({}, Outcome("timeout", reason + (f"; {blocked_by}" if blocked_by else "")))
        case _Cancelled():
            return Scored({}, Outcome("cancelled", "the run ended first"))


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
    return None if timeout_s is None else timeout_s + min(_MAX_GRACE_S, _GRACE_SHARE * timeout_s)
