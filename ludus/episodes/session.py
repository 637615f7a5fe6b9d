"""One session of one agent: answers requests with an engine, and records every turn token by token.

Knows: requests, completions in flight, the session's limits.  Knows not: HTTP, rewards, how tokens are sampled.
Invariants: every token from the engine is in the record once, with the turn that sampled it, however the request ended;
deltas are sent as tokens are sampled, and add up to the reply; a retry gets the recorded answer, and is never sampled
again; if the session has a sink, a turn is durable before its answer ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

from ludus.engines.base import Engine
from ludus.episodes.completion import Choice, Completion, Listener, OnDelta, OnStart
from ludus.episodes.graph import SessionGraph
from ludus.episodes.limits import deadline_error, token_limit_error
from ludus.episodes.names import UNNAMED, ModelNames
from ludus.episodes.plan import plan
from ludus.episodes.prompt import Prompts
from ludus.episodes.reply import replay
from ludus.episodes.resolve import Resolver
from ludus.episodes.retry import RetryCache
from ludus.episodes.seeds import Seeds, session_seed
from ludus.episodes.spec import SessionSpec
from ludus.episodes.stats import SessionStats
from ludus.errors import AgentError, BackendError, UserError
from ludus.runs.forks import ForkExample, fork_examples
from ludus.text.chat import ChatText
from ludus.types import (
    AbortCause,
    Call,
    ChatRequest,
    ForkReason,
    Message,
    Node,
    Sampled,
    Sampling,
    SessionRecord,
    TokenChunk,
    Turn,
)

logger = logging.getLogger(__name__)


class TurnSink(Protocol):
    """Keeps turns of many sessions. Called from several threads while an answer waits, so it must be quick."""

    def add_turn(self, session_id: str, nodes: Sequence[Node], turn: Turn) -> None:
        """Keep a turn, which is durable when this returns. Raises BackendError if it cannot be kept.

        nodes: the new nodes of the session's graph, in the graph's order; that of the turn is the last.
        """


class OtherModels(Protocol):
    """Further weights that a session's requests may name. Called from several threads and event loops."""

    def names(self) -> Sequence[str]: ...

    async def find(self, session: Session, name: str) -> Session | None:
        """The session, on other weights, that answers this session's requests by this name. None: an unknown name.

        Raises AgentError or BackendError if weights of this name cannot answer.
        """


class Session:
    """One session of one agent, recorded token by token. Safe to use from several threads and event loops."""

    def __init__(
        self,
        engine: Engine,
        text: ChatText,
        spec: SessionSpec,
        sink: TurnSink | None,
        *,
        names: ModelNames = UNNAMED,
        others: OtherModels | None = None,
    ) -> None:
        """names: of the model, in requests.  others: None: no other weights are served."""
        assert spec.id is not None, "whoever opens a session makes one"
        self.id = spec.id
        self.spec = spec
        self.names = names
        self._others = others
        self.sampling = replace(spec.sampling, seed=None)
        self.pinned = _checked_pinned(spec.pinned)
        self.text = text
        self._engine = engine
        self._sink = sink
        self._num_kept_nodes = 0
        """How many nodes of the graph were given to the sink."""
        self._graph = SessionGraph(self.id)
        self._prompts = Prompts(text, self._graph, context_length=engine.context_length)
        self._resolver = Resolver(text, self._graph)
        self._seeds = Seeds(session_seed(self.id) if spec.sampling.seed is None else spec.sampling.seed)
        self._retries: RetryCache[Completion | tuple[Turn, ...]] = RetryCache()
        self._forks: Counter[ForkReason] = Counter()
        self._refused: Counter[str] = Counter()
        self._completions: dict[Completion, asyncio.Task[None]] = {}
        self._num_tokens = 0
        self._last_at = 0.0
        """The last time that `_now` returned."""
        self._close_reason: str | None = None
        # Guards all fields above and the completions. Held while rendering and parsing, never while awaiting.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        stats = self.stats()
        state = "open" if self._close_reason is None else f"closed: {self._close_reason}"
        return f"Session({self.id!r}, {state}, turns={stats.num_turns}, running={stats.num_running})"

    @property
    def version(self) -> int:
        """Version of the weights that would answer now."""
        return self._engine.stats().version

    @property
    def model_list(self) -> tuple[str, ...]:
        """Names of all models that requests may name."""
        return self.names.listed(() if self._others is None else self._others.names())

    async def named(self, model: str) -> Session:
        """The session that answers requests for this model: this one, or one on other weights.

        Raises AgentError 404 for an unknown name, BackendError if the weights cannot be loaded.
        """
        if model in self.names.own or model in self.names.served:
            return self
        if self._others is not None:
            if self._close_reason is not None:
                raise self._closed_error()
            if (found := await self._others.find(self, model)) is not None:
                return found
        if self.names.serves(model):
            return self
        raise self.names.unknown(model, self.model_list)

    def pinned_fields(self, request: ChatRequest) -> tuple[str, ...]:
        """Names of the sampling fields whose values in `request` are replaced by the session's."""
        if not self.pinned:
            return ()
        asked, own = request.sampling, self.sampling
        return tuple(name for name in sorted(self.pinned) if getattr(asked, name) != getattr(own, name))

    def ignored_fields(self, request: ChatRequest) -> tuple[str, ...]:
        """Names of fields of `request` that have no effect, because the chat template does not read them."""
        return self._resolver.ignored_fields(request)

    def history(self, turn_id: str) -> tuple[Message, ...] | None:
        """The messages that a request which continues this turn begins with: the turn's own and its reply. None: there
        is no such turn."""
        with self._lock:
            return self._resolver.history(turn_id)

    def count_prompt_tokens(self, request: ChatRequest) -> int:
        """How many tokens an engine would be given for `request`. Raises AgentError as `complete` does."""
        return len(self.prompt_ids(request))

    def prompt_ids(self, request: ChatRequest) -> tuple[int, ...]:
        """The tokens that an engine would be given for `request`. Raises AgentError as `complete` does."""
        with self._lock:
            return self._prompts.choose(self._resolver.resolve(request)).ids

    async def complete(
        self,
        request: ChatRequest,
        on_delta: OnDelta | None = None,
        *,
        on_start: OnStart | None = None,
        is_live: bool = True,
    ) -> tuple[Turn, ...]:
        """The recorded turns that answer `request`, one for each of its n choices, in the order of the choices.

        on_start: called with the turns' ids and the length of their prompt once the request is accepted.
        on_delta: called with each delta of each choice as soon as it is certain; if `is_live` is False, perhaps only
        at the end.
        Cancelling aborts the engine call; the tokens sampled until then are recorded before the cancellation is raised.
        Raises AgentError if the request is refused or a limit ends it, BackendError if the engine fails.
        """
        if pinned := self.pinned_fields(request):
            pins = {name: getattr(self.sampling, name) for name in pinned}
            request = replace(request, sampling=replace(request.sampling, **pins))
        try:
            while True:
                with self._lock:
                    found = self._find_or_start(self._resolver.resolve(request))
                    if isinstance(found, tuple):
                        self._replay(found, on_start, on_delta)
                        return found
                    is_left = found.stop_cause == "client_cancel"
                    listener = found.join() if is_left else found.join(on_start, on_delta, is_live=is_live)
                if not is_left:
                    return await self._attend(found, listener)
                await listener.settled.wait()  # the client of that request left: it ends soon, and may still be whole
        except AgentError as error:
            with self._lock:
                self._refused[error.code] += 1
            raise

    def close(self, reason: str) -> SessionRecord:
        """Close the session and return its record at once: answers in flight are aborted and recorded as they are.

        Later requests get AgentError `session_closed`. Closing again returns the record again.
        """
        with self._lock:
            for completion in self._refuse_from_now(reason):
                for choice in completion.choices:
                    self._record(completion, choice, choice.partial())
            return self._graph.snapshot()

    async def aclose(self, reason: str) -> SessionRecord:
        """As `close`, but first waits for all tokens that the engine has sampled for answers in flight."""
        with self._lock:
            listeners = [completion.join() for completion in self._refuse_from_now(reason)]
        for listener in listeners:
            await listener.settled.wait()
        return self.close(reason)

    def token_text(self, token_id: int) -> str:
        """The text of one token, special ones included; U+FFFD for a part of a character."""
        return self.text.tokenizer.decode((token_id,))

    def num_prompt_tokens(self, turn: Turn) -> int:
        """How many tokens the engine was given for a turn of this session."""
        return self._graph.num_prompt_tokens(turn.id)

    def given_ids(self, turn: Turn) -> tuple[int, ...]:
        """The tokens that the engine was given for a turn of this session."""
        return self._graph.path_ids(turn.id)[: self.num_prompt_tokens(turn)]

    def snapshot(self) -> SessionRecord:
        """The record of the turns finished so far."""
        return self._graph.snapshot()

    def fork_examples(self) -> dict[str, ForkExample]:
        """For each reason the first turn whose tokens forked: the tokens that it would have extended, and its own."""
        return fork_examples(self.snapshot(), self.text.tokenizer.decode)

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
                forks=MappingProxyType(dict(self._forks)),
                refused=MappingProxyType(dict(self._refused)),
            )

    @property
    def _num_running(self) -> int:
        return sum(completion.num_running for completion in self._completions)

    def _find_or_start(self, request: ChatRequest) -> Completion | tuple[Turn, ...]:
        """If the request is a retry, the finished turns or the running completion; else a new completion."""
        known = self._retries.find(request)
        if known is not None:
            return known
        if self._close_reason is not None:
            raise self._closed_error()
        self.spec.limits.check(
            num_turns=self._graph.stats().num_turns + self._num_running,
            num_asked=request.n,
            num_tokens=self._num_tokens,
            now=time.monotonic(),
        )
        completion = plan(
            request, self.spec, self._prompts, self._seeds, num_tokens=self._num_tokens, started_at=self._now()
        )
        turn_ids = [choice.call.id for choice in completion.choices]
        self._graph.begin(turn_ids, request.messages, request.agent, completion.prompt.follows)
        # A task of its own, so that cancelling the request does not cancel the recording of its tokens.
        self._completions[completion] = asyncio.get_running_loop().create_task(self._perform(completion))
        self._retries.enter(request, completion)
        return completion

    def _replay(self, turns: tuple[Turn, ...], on_start: OnStart | None, on_delta: OnDelta | None) -> None:
        if on_start is not None:
            on_start(tuple(turn.id for turn in turns), self.num_prompt_tokens(turns[0]))
        if on_delta is not None:
            for idx, turn in enumerate(turns):
                for delta in replay(turn.reply):
                    on_delta(idx, delta)

    async def _attend(self, completion: Completion, listener: Listener) -> tuple[Turn, ...]:
        """Wait until the completion is settled. When cancelled, wait on if this is its last listener, then raise."""
        cancelled: asyncio.CancelledError | None = None
        while not listener.settled.is_set():
            try:
                await listener.settled.wait()
            except asyncio.CancelledError as error:
                cancelled = error
                with self._lock:
                    is_last = completion.leave(listener)
                if not is_last:
                    raise
        if cancelled is not None:
            raise cancelled
        if completion.error is not None:
            raise completion.error
        return completion.turns

    async def _perform(self, completion: Completion) -> None:
        try:
            take, record = partial(self._take, completion), partial(self._record, completion)
            await completion.perform(self._engine, take, record, self._recalled)
        except ExceptionGroup as group:
            completion.fail(group.exceptions[0])
        finally:
            self._settle(completion)

    def _recalled(self, call: Call) -> Sampled | None:
        """The answer that was sampled for this call in an earlier life of the run. None: there is none."""
        with self._lock:
            return None if self.spec.recall is None else self.spec.recall.answer(call)

    def _take(self, completion: Completion, choice: Choice, chunk: TokenChunk) -> None:
        """Take new tokens of an answer in flight; stop all answers if the token limit is reached."""
        with self._lock:
            if choice.is_recorded:
                return  # the session was closed meanwhile
            self._num_tokens += len(chunk.token_ids)
            choice.take(chunk)
            if completion.is_heard:
                completion.send(choice.idx, choice.read())
            if self.spec.limits.tokens_left(self._num_tokens) == 0:
                for other in self._completions:
                    other.stop("token_limit")

    def _record(self, completion: Completion, choice: Choice, sampled: Sampled) -> None:
        """Record `choice` as a turn, once; an answer without tokens is not recorded."""
        with self._lock:
            if choice.is_recorded:
                return
            choice.is_recorded = True
            try:
                completion.send(choice.idx, choice.finish())
            finally:  # the tokens are recorded even if decoding them fails
                if sampled.token_ids:
                    self._add_turn(completion, choice, sampled)
                else:
                    self._graph.drop(choice.call.id)

    def _add_turn(self, completion: Completion, choice: Choice, sampled: Sampled) -> None:
        if sampled.stop_reason == "abort" and completion.stop_cause == "token_limit":
            sampled = replace(sampled, stop_reason="length")
        is_aborted = sampled.stop_reason == "abort"
        request, prompt = completion.request, completion.prompt
        turn = self._graph.add_turn(
            turn_id=choice.call.id,
            prompt_ids=prompt.ids,
            prefix=prompt.prefix,
            follows=prompt.follows,
            fork=prompt.fork,
            messages=request.messages,
            reply=choice.reply.message(),
            sampled=sampled,
            sampling=choice.call.sampling,
            agent=request.agent,
            tools=request.tools,
            undecoded=choice.reply.undecoded,
            started_at=completion.started_at,
            first_token_at=choice.first_token_at,
            finished_at=self._now(),
            abort_cause=self._abort_cause(completion) if is_aborted else None,
        )
        self._prompts.remember(turn, prompt, request.template_kwargs)
        self._resolver.remember(turn, request)
        self._log(turn)
        if self._sink is not None:
            nodes = self._graph.nodes_from(self._num_kept_nodes)
            self._num_kept_nodes += len(nodes)
            try:
                self._sink.add_turn(self.id, nodes, turn)
            except BackendError:  # the request fails and may be retried; an answer it never got must not be trained
                self._graph.break_off(turn.id, "failed")
                raise
        completion.add(choice.idx, turn)

    def _now(self) -> float:
        """Unix time, but later than ever before: times say what came after what, even if the system's clock is set."""
        self._last_at = max(time.time(), math.nextafter(self._last_at, math.inf))
        return self._last_at

    def _abort_cause(self, completion: Completion) -> AbortCause | None:
        if completion.stop_cause is None or completion.stop_cause == "token_limit":
            return "deadline" if self._is_overdue() else None
        return completion.stop_cause

    def _log(self, turn: Turn) -> None:
        logger.debug("turn.recorded session=%s turn=%s fork=%s", self.id, turn.id, turn.fork)
        if turn.undecoded:
            logger.warning("Failed to decode tool call: %s session=%s turn=%s", turn.undecoded, self.id, turn.id)
        if turn.fork is not None and turn.follows is not None:
            self._forks[turn.fork] += 1

    def _settle(self, completion: Completion) -> None:
        with self._lock:
            del self._completions[completion]
            whole = [turn for turn in completion.turns if turn.sampled.stop_reason != "abort"]
            aborted = len(whole) < len(completion.choices)
            if aborted and completion.error is None:
                completion.error = self._reason_of_abort(completion)
            completion.settle()
            is_whole = not aborted and completion.error is None
            self._retries.replace(completion.request, completion.turns if is_whole else None)

    def _reason_of_abort(self, completion: Completion) -> AgentError | BackendError | None:
        """The error for a completion that ended in the middle. None: its client ended it."""
        if self._close_reason is not None:
            return self._closed_error()
        if self._is_overdue():
            return deadline_error()
        if completion.stop_cause == "token_limit":
            return token_limit_error(self.spec.limits)
        if completion.stop_cause is None and completion.turns:
            return BackendError("the engine ended the answer in the middle, by itself; send the request again")
        return None

    def _is_overdue(self) -> bool:
        return self.spec.limits.deadline_at is not None and time.monotonic() >= self.spec.limits.deadline_at

    def _refuse_from_now(self, reason: str) -> tuple[Completion, ...]:
        """Refuse new requests, and stop the completions in flight, which are returned."""
        if self._close_reason is None:
            self._close_reason = reason
            logger.debug("session.closed session=%s reason=%s", self.id, reason)
        for completion in self._completions:
            completion.stop("session_closed")
        return tuple(self._completions)

    def _closed_error(self) -> AgentError:
        return AgentError(f"this session is closed ({self._close_reason}); end the episode", code="session_closed")


def _checked_pinned(names: Collection[str]) -> frozenset[str]:
    known = [field.name for field in fields(Sampling)]
    for name in sorted(names):
        if name not in known:
            raise UserError(f"pinned={name!r} is no field of Sampling; known: {', '.join(known)}")
    return frozenset(names)
