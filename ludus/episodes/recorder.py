"""Joins text, a session's graph and an engine: a message list in, an exact turn out.

Knows: requests, runs in flight, what a session may use.  Knows not: HTTP, rewards, how tokens are sampled.
Invariants: every token that an engine handed over is in the record once, with the turn that sampled it, however the
request ended; deltas leave as tokens are sampled and add up to the reply; a retry is answered, never sampled again;
where the session has a sink, a turn is durable before its answer ends.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Literal

from ludus.engines.base import Engine
from ludus.episodes.forks import ForkExample, ForkLog
from ludus.episodes.graph import SessionGraph
from ludus.episodes.limits import NO_LIMITS, Limits, deadline_error, token_limit_error
from ludus.episodes.plan import Planner
from ludus.episodes.prompt import Prompt, Prompts
from ludus.episodes.reply import replay
from ludus.episodes.resolve import Resolver
from ludus.episodes.retry import RetryBook
from ludus.episodes.run import Choice, Listener, OnDelta, OnStart, Run
from ludus.episodes.seeds import Seeds, session_seed
from ludus.episodes.sink import TurnSink
from ludus.errors import AgentError, UserError
from ludus.text.chat import ChatText
from ludus.types import AbortCause, ChatRequest, ForkReason, Message, Sampled, Sampling, SessionRecord, TokenChunk, Turn

logger = logging.getLogger(__name__)

FinishReason = Literal["stop", "length", "tool_calls", "abort"]

_OWN_DISTRIBUTION = Sampling()


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session has come to so far."""

    num_turns: int
    num_tokens: int
    """Sampled tokens, those of answers in flight included."""
    num_running: int
    """Answers in flight."""
    num_nodes: int
    """Nodes of the token graph."""
    num_encoded_chars: int
    """Characters of prompts that were tokenized. Without forks they are those of the rendered conversation."""
    num_rendered_messages: int
    """Messages that went through the chat template."""
    forks: Mapping[ForkReason, int]
    fork_examples: Mapping[ForkReason, ForkExample]
    """The first fork of each reason."""
    refused: Mapping[str, int]
    """Requests that got no answer, by the code of their error."""


class Recorder:
    """Opens sessions on one engine and one chat model's text. Safe to use from several threads and event loops."""

    def __init__(self, engine: Engine, text: ChatText, *, model_name: str = "default") -> None:
        self.model_name = model_name
        self._engine = engine
        self._text = text

    def __repr__(self) -> str:
        return f"Recorder(model={self.model_name!r}, engine={self._engine!r})"

    def open(
        self,
        *,
        session_id: str,
        group_id: str | None = None,
        limits: Limits = NO_LIMITS,
        sampling: Sampling = _OWN_DISTRIBUTION,
        pinned: Iterable[str] = (),
        sink: TurnSink | None = None,
    ) -> RecordedSession:
        """A new session without turns.

        sampling: what a request gets where it asks for nothing; its seed is the session's seed (None: one is derived
        from `session_id`). pinned: fields of `sampling` that a request cannot change. sink: keeps each turn before
        its answer ends; None: turns are in memory alone.
        """
        return RecordedSession(
            self._engine,
            self._text,
            session_id=session_id,
            group_id=group_id,
            limits=limits,
            sampling=sampling,
            pinned=frozenset(pinned),
            sink=sink,
        )


class RecordedSession:
    """One session of one agent, recorded token by token. Safe to use from several threads and event loops."""

    def __init__(
        self,
        engine: Engine,
        text: ChatText,
        *,
        session_id: str,
        group_id: str | None,
        limits: Limits,
        sampling: Sampling,
        pinned: frozenset[str],
        sink: TurnSink | None,
    ) -> None:
        self.id = session_id
        self.group_id = group_id
        self.limits = limits
        self.sampling = replace(sampling, seed=None)
        self.pinned = _checked_pinned(pinned)
        self.text = text
        self._engine = engine
        self._tokenizer = text.tokenizer
        self._sink = sink
        self._num_kept_nodes = 0
        """Nodes of the graph that the sink was told."""
        self._graph = SessionGraph(session_id)
        self._prompts = Prompts(text, self._graph, context_length=engine.context_length)
        self._resolver = Resolver(text, self._graph)
        seeds = Seeds(session_seed(session_id) if sampling.seed is None else sampling.seed)
        self._planner = Planner(
            engine, text, self._prompts, seeds, session_id=session_id, group_id=group_id, limits=limits
        )
        self._retries: RetryBook[Run | tuple[Turn, ...]] = RetryBook()
        self._forks = ForkLog()
        self._refused: dict[str, int] = {}
        self._runs: dict[Run, asyncio.Task[None]] = {}
        self._num_tokens = 0
        self._close_reason: str | None = None
        # Guards everything above, and the runs. Held while rendering and parsing, never while awaiting.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        stats = self.stats()
        state = "open" if self._close_reason is None else f"closed: {self._close_reason}"
        return f"RecordedSession({self.id!r}, {state}, turns={stats.num_turns}, running={stats.num_running})"

    def pinned_fields(self, request: ChatRequest) -> tuple[str, ...]:
        """Names of the sampling fields whose values in `request` are replaced by the session's."""
        if not self.pinned:
            return ()
        asked, own = request.sampling, self.sampling
        return tuple(name for name in sorted(self.pinned) if getattr(asked, name) != getattr(own, name))

    def ignored_fields(self, request: ChatRequest) -> tuple[str, ...]:
        """Names of the fields of `request` that cannot act, because the chat template does not read them."""
        return self._resolver.ignored_fields(request)

    def history(self, turn_id: str) -> tuple[Message, ...] | None:
        """What a request that continues a turn begins with: what was asked there, and the reply. None: no such turn."""
        with self._lock:
            return self._resolver.history(turn_id)

    def count_prompt_tokens(self, request: ChatRequest) -> int:
        """Tokens that an engine would be given for `request`. Raises AgentError as `complete` does."""
        with self._lock:
            return len(self._prompts.choose(self._resolver.resolve(request)).ids)

    async def complete(
        self,
        request: ChatRequest,
        on_delta: OnDelta | None = None,
        *,
        on_start: OnStart | None = None,
        is_live: bool = True,
    ) -> tuple[Turn, ...]:
        """The recorded turns that answer `request`, one for each of its n choices, in the order of the choices.

        on_start is told the turns' ids and the length of their prompt once the request is accepted; then on_delta what
        each choice adds, as soon as it is certain, or in the end where that is soon enough (`is_live` False).
        Cancelling aborts the engine call; the tokens sampled until then are recorded before the cancellation goes on.
        Raises AgentError when the request is refused or a limit ends it, BackendError when the engine fails.
        """
        if pinned := self.pinned_fields(request):
            pins = {name: getattr(self.sampling, name) for name in pinned}
            request = replace(request, sampling=replace(request.sampling, **pins))
        try:
            with self._lock:
                found = self._find_or_start(self._resolver.resolve(request))
                if isinstance(found, tuple):
                    self._replay(found, on_start, on_delta)
                    return found
                listener = found.join(on_start, on_delta, is_live=is_live)
            return await self._attend(found, listener)
        except AgentError as error:
            with self._lock:
                self._refused[error.code] = self._refused.get(error.code, 0) + 1
            raise

    def close(self, reason: str) -> SessionRecord:
        """The record, at once: answers in flight are recorded as far as they came, and aborted.

        Later requests get AgentError `session_closed`. Closing again returns the record again.
        """
        with self._lock:
            for run in self._refuse_from_now(reason):
                for choice in run.choices:
                    self._record(run, choice, choice.partial())
            return self._graph.snapshot()

    async def aclose(self, reason: str) -> SessionRecord:
        """The record, once the engine has handed over every token it sampled for answers in flight."""
        with self._lock:
            listeners = [run.join() for run in self._refuse_from_now(reason)]
        for listener in listeners:
            await listener.settled.wait()
        return self.close(reason)

    def token_text(self, token_id: int) -> str:
        """One token as text, special ones included; a part of a character is U+FFFD."""
        return self._tokenizer.decode((token_id,))

    def num_prompt_tokens(self, turn: Turn) -> int:
        """Tokens that the engine was given for a turn of this session."""
        return self._graph.num_prompt_tokens(turn.id)

    def snapshot(self) -> SessionRecord:
        """The turns finished so far."""
        return self._graph.snapshot()

    def stats(self) -> SessionStats:
        with self._lock:
            graph = self._graph.stats()
            return SessionStats(
                num_turns=graph.num_turns,
                num_tokens=self._num_tokens,
                num_running=self._num_running,
                num_nodes=graph.num_nodes,
                num_encoded_chars=self._prompts.num_encoded_chars,
                num_rendered_messages=self._prompts.num_rendered_messages,
                forks=self._forks.counts,
                fork_examples=self._forks.examples,
                refused=MappingProxyType(dict(self._refused)),
            )

    @property
    def _num_running(self) -> int:
        return sum(run.num_running for run in self._runs)

    def _find_or_start(self, request: ChatRequest) -> Run | tuple[Turn, ...]:
        """The finished turns or the run of the same request sent before; else a new run."""
        known = self._retries.find(request)
        if known is not None:
            return known
        if self._close_reason is not None:
            raise self._closed_error()
        self.limits.check(
            num_turns=self._graph.stats().num_turns + self._num_running,
            num_asked=request.n,
            num_tokens=self._num_tokens,
            now=time.monotonic(),
        )
        run = self._planner.plan(request, num_tokens=self._num_tokens)
        # A task of its own: a request that is cancelled must not take the recording of its tokens along.
        self._runs[run] = asyncio.get_running_loop().create_task(self._perform(run))
        self._retries.enter(request, run)
        return run

    def _replay(self, turns: tuple[Turn, ...], on_start: OnStart | None, on_delta: OnDelta | None) -> None:
        if on_start is not None:
            on_start(tuple(turn.id for turn in turns), self.num_prompt_tokens(turns[0]))
        if on_delta is not None:
            for idx, turn in enumerate(turns):
                for delta in replay(turn.reply):
                    on_delta(idx, delta)

    async def _attend(self, run: Run, listener: Listener) -> tuple[Turn, ...]:
        """Waits until `run` is settled, through a cancellation too unless others wait for the same run."""
        cancelled: asyncio.CancelledError | None = None
        while not listener.settled.is_set():
            try:
                await listener.settled.wait()
            except asyncio.CancelledError as error:
                cancelled = error
                with self._lock:
                    is_last = run.leave(listener)
                    if is_last:
                        self._retries.forget(run.request, run)
                if not is_last:
                    raise
        if cancelled is not None:
            raise cancelled
        if run.error is not None:
            raise run.error
        return run.turns

    async def _perform(self, run: Run) -> None:
        try:
            await run.perform(self._engine, partial(self._take, run), partial(self._record, run))
        except ExceptionGroup as group:
            run.fail(group.exceptions[0])
        finally:
            self._settle(run)

    def _take(self, run: Run, choice: Choice, chunk: TokenChunk) -> None:
        """New tokens of an answer in flight; stops all answers when the budget of tokens is used up."""
        with self._lock:
            if choice.is_recorded:
                return  # the session was closed meanwhile
            self._num_tokens += len(chunk.token_ids)
            choice.take(chunk)
            if run.is_heard:
                run.say(choice.idx, choice.read())
            if self.limits.tokens_left(self._num_tokens) == 0:
                for other in self._runs:
                    other.stop("token_limit")

    def _record(self, run: Run, choice: Choice, sampled: Sampled) -> None:
        """Makes `choice` a turn, once; an answer without a token leaves no trace."""
        with self._lock:
            if choice.is_recorded:
                return
            choice.is_recorded = True
            try:
                run.say(choice.idx, choice.finish())
            finally:  # tokens are kept even when telling what they mean fails
                if sampled.token_ids:
                    self._add_turn(run, choice, sampled)

    def _add_turn(self, run: Run, choice: Choice, sampled: Sampled) -> None:
        if sampled.stop_reason == "abort" and run.stop_cause == "token_limit":
            sampled = replace(sampled, stop_reason="length")
        is_aborted = sampled.stop_reason == "abort"
        request, prompt = run.request, run.prompt
        turn = self._graph.add_turn(
            turn_id=choice.call.id,
            prompt_ids=prompt.ids,
            prefix=prompt.prefix,
            follows=prompt.follows,
            fork=prompt.fork,
            messages=request.messages,
            reply=choice.message,
            sampled=sampled,
            sampling=choice.call.sampling,
            agent=request.agent,
            tools=request.tools,
            undecoded=choice.undecoded,
            started_at=run.started_at,
            finished_at=time.time(),
            abort_cause=self._abort_cause(run) if is_aborted else None,
        )
        self._prompts.remember(turn, prompt, request.template_kwargs)
        self._resolver.remember(turn, request)
        self._log(turn, prompt)
        self._make_durable(turn)
        run.add(choice.idx, turn)

    def _abort_cause(self, run: Run) -> AbortCause | None:
        if run.stop_cause is None or run.stop_cause == "token_limit":
            return "deadline" if self._is_overdue() else None
        return run.stop_cause

    def _make_durable(self, turn: Turn) -> None:
        if self._sink is None:
            return
        nodes = self._graph.nodes_from(self._num_kept_nodes)
        self._num_kept_nodes += len(nodes)
        self._sink.add_turn(self.id, nodes, turn)

    def _log(self, turn: Turn, prompt: Prompt) -> None:
        logger.debug("turn.recorded session=%s turn=%s fork=%s", self.id, turn.id, turn.fork)
        if turn.undecoded:
            logger.warning("Failed to decode tool call: %s session=%s turn=%s", turn.undecoded, self.id, turn.id)
        if turn.fork is not None and turn.follows is not None:
            seen_ids = self._graph.path_ids(turn.follows)
            self._forks.add(
                turn.fork,
                lambda: ForkExample.around(
                    turn_id=turn.id,
                    follows=str(turn.follows),
                    seen=self._tokenizer.decode(seen_ids),
                    rendered=prompt.text,
                ),
            )

    def _settle(self, run: Run) -> None:
        with self._lock:
            del self._runs[run]
            aborted = len(run.turns) < len(run.choices) or any(t.sampled.stop_reason == "abort" for t in run.turns)
            if aborted and run.error is None:
                run.error = self._reason_of_abort(run)
            run.settle()
            if aborted or run.error is not None:
                self._retries.forget(run.request, run)
            else:
                self._retries.replace(run.request, run, run.turns)

    def _reason_of_abort(self, run: Run) -> AgentError | None:
        """Which limit ended the run. None: the engine, or the one who waited for it, did."""
        if self._close_reason is not None:
            return self._closed_error()
        if self._is_overdue():
            return deadline_error()
        if run.stop_cause == "token_limit":
            return token_limit_error(self.limits)
        return None

    def _is_overdue(self) -> bool:
        return self.limits.deadline_at is not None and time.monotonic() >= self.limits.deadline_at

    def _refuse_from_now(self, reason: str) -> tuple[Run, ...]:
        """The runs in flight, all asked to stop."""
        if self._close_reason is None:
            self._close_reason = reason
            logger.debug("session.closed session=%s reason=%s", self.id, reason)
        for run in self._runs:
            run.stop("session_closed")
        return tuple(self._runs)

    def _closed_error(self) -> AgentError:
        return AgentError(f"this session is closed ({self._close_reason}); end the episode", code="session_closed")


def finish_reason(turn: Turn) -> FinishReason:
    """Why the answer ended, as an agent is told: calls are only announced when the model finished them itself."""
    if turn.sampled.stop_reason == "stop" and turn.reply.tool_calls:
        return "tool_calls"
    return turn.sampled.stop_reason


def _checked_pinned(names: frozenset[str]) -> frozenset[str]:
    known = [field.name for field in fields(Sampling)]
    for name in sorted(names):
        if name not in known:
            raise UserError(f"pinned={name!r} is no field of Sampling; known: {', '.join(known)}")
    return names
