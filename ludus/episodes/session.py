"""One session of one agent, joined from text, a token graph and an engine: a message list in, an exact turn out.

Knows: requests, completions in flight, what a session may use.  Knows not: HTTP, rewards, how tokens are sampled.
Invariants: every token that an engine handed over is in the record once, with the turn that sampled it, however the
request ended; deltas leave as tokens are sampled and add up to the reply; a retry is answered, never sampled again;
where the session has a sink, a turn is durable before its answer ends.
"""

from __future__ import annotations

import asyncio
import logging
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
    """Keeps turns of many sessions. Called from several threads, and while an answer waits: it must be quick."""

    def add_turn(self, session_id: str, nodes: Sequence[Node], turn: Turn) -> None:
        """Durable when it returns. Raises BackendError where it cannot be.

        nodes: those of the session's graph that no earlier turn gave, in the graph's order; the turn's is the last.
        """


class OtherModels(Protocol):
    """Weights besides a session's own that its requests may name. Called from several threads and event loops."""

    def names(self) -> Sequence[str]: ...

    async def find(self, session: Session, name: str) -> Session | None:
        """The session of other weights that belongs to this one. None: the name is none of theirs.

        Raises AgentError or BackendError for one of theirs that cannot answer.
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
        """names: what requests call the model that answers here.  others: None: no other weights are served."""
        assert spec.id is not None, "it was given one"
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
        """Nodes of the graph that the sink was given."""
        self._graph = SessionGraph(self.id)
        self._prompts = Prompts(text, self._graph, context_length=engine.context_length)
        self._resolver = Resolver(text, self._graph)
        self._seeds = Seeds(session_seed(self.id) if spec.sampling.seed is None else spec.sampling.seed)
        self._retries: RetryCache[Completion | tuple[Turn, ...]] = RetryCache()
        self._forks: Counter[ForkReason] = Counter()
        self._refused: Counter[str] = Counter()
        self._completions: dict[Completion, asyncio.Task[None]] = {}
        self._num_tokens = 0
        self._close_reason: str | None = None
        # Guards everything above, and the completions. Held while rendering and parsing, never while awaiting.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        stats = self.stats()
        state = "open" if self._close_reason is None else f"closed: {self._close_reason}"
        return f"Session({self.id!r}, {state}, turns={stats.num_turns}, running={stats.num_running})"

    @property
    def version(self) -> int:
        """Of the weights that would answer now."""
        return self._engine.stats().version

    @property
    def model_list(self) -> tuple[str, ...]:
        """Names of all models that requests may name."""
        return self.names.listed(() if self._others is None else self._others.names())

    async def named(self, model: str) -> Session:
        """The session that answers a request which names this model: this one, or one of other weights beside it.

        Raises AgentError 404 for a name that nothing here answers to, BackendError where the weights cannot be loaded.
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
        """Names of the fields of `request` that cannot act, because the chat template does not read them."""
        return self._resolver.ignored_fields(request)

    def history(self, turn_id: str) -> tuple[Message, ...] | None:
        """What a request that continues a turn begins with: what was asked there, and the reply. None: no such turn."""
        with self._lock:
            return self._resolver.history(turn_id)

    def count_prompt_tokens(self, request: ChatRequest) -> int:
        """Tokens that an engine would be given for `request`. Raises AgentError as `complete` does."""
        return len(self.prompt_ids(request))

    def prompt_ids(self, request: ChatRequest) -> tuple[int, ...]:
        """What an engine would be given for `request`. Raises AgentError as `complete` does."""
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

        on_start is called with the turns' ids and the length of their prompt once the request is accepted; on_delta
        with what each choice adds, as soon as it is certain, or in the end where that is soon enough (`is_live` False).
        Cancelling aborts the engine call; the tokens sampled until then are recorded before the cancellation goes on.
        Raises AgentError when the request is refused or a limit ends it, BackendError when the engine fails.
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
                await listener.settled.wait()  # its client has left: it ends soon, and may be whole all the same
        except AgentError as error:
            with self._lock:
                self._refused[error.code] += 1
            raise

    def close(self, reason: str) -> SessionRecord:
        """The record, at once: answers in flight are recorded as far as they came, and aborted.

        Later requests get AgentError `session_closed`. Closing again returns the record again.
        """
        with self._lock:
            for completion in self._refuse_from_now(reason):
                for choice in completion.choices:
                    self._record(completion, choice, choice.partial())
            return self._graph.snapshot()

    async def aclose(self, reason: str) -> SessionRecord:
        """The record, once the engine has handed over every token it sampled for answers in flight."""
        with self._lock:
            listeners = [completion.join() for completion in self._refuse_from_now(reason)]
        for listener in listeners:
            await listener.settled.wait()
        return self.close(reason)

    def token_text(self, token_id: int) -> str:
        """One token as text, special ones included; a part of a character is U+FFFD."""
        return self.text.tokenizer.decode((token_id,))

    def num_prompt_tokens(self, turn: Turn) -> int:
        """Tokens that the engine was given for a turn of this session."""
        return self._graph.num_prompt_tokens(turn.id)

    def snapshot(self) -> SessionRecord:
        """The turns finished so far."""
        return self._graph.snapshot()

    def fork_examples(self) -> dict[str, ForkExample]:
        """By reason the first turn whose tokens forked: what the model saw, and what it was given instead."""
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
        """The finished turns or the completion of the same request sent before; else a new completion."""
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
        completion = plan(request, self.spec, self._prompts, self._seeds, num_tokens=self._num_tokens)
        turn_ids = [choice.call.id for choice in completion.choices]
        self._graph.begin(turn_ids, request.messages, request.agent, completion.prompt.follows)
        # A task of its own: a request that is cancelled must not take the recording of its tokens along.
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
        """Waits until `run` is settled, through a cancellation too unless others wait for the same completion."""
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
        """What was sampled for the call before. None: nothing was."""
        with self._lock:
            return None if self.spec.recall is None else self.spec.recall.answer(call)

    def _take(self, completion: Completion, choice: Choice, chunk: TokenChunk) -> None:
        """New tokens of an answer in flight; stops all answers when the budget of tokens is used up."""
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
        """Makes `choice` a turn, once; an answer without a token leaves no trace."""
        with self._lock:
            if choice.is_recorded:
                return
            choice.is_recorded = True
            try:
                completion.send(choice.idx, choice.finish())
            finally:  # tokens are kept even when telling what they mean fails
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
            finished_at=time.time(),
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
            except BackendError:  # the request fails and may come again; what it was not told must not be trained
                self._graph.break_off(turn.id, "failed")
                raise
        completion.add(choice.idx, turn)

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
        """What ended the completion in the middle. None: the one who waited for it did."""
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
        """The completions in flight, all asked to stop."""
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
