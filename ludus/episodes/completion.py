"""One request in flight: its answers as they grow, those who wait for it, and the way to stop it.

Knows: event loops, listeners, tokens as they come.  Knows not: the session's graph, limits, how prompts are chosen.
Invariant: a listener gets every delta once and in order, whenever it joined and on whichever loop it waits.

    running ──(all answers recorded)──▶ settled: turns, or one error
       └────(stop: client_cancel · session_closed · failed · token_limit)──▶ engine aborts ──▶ settled, the rest kept
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from ludus.engines.base import Engine
from ludus.episodes.prompt import Prompt
from ludus.episodes.reply import ReplyStream
from ludus.errors import BackendError
from ludus.text.parsers.base import Delta
from ludus.types import AbortCause, Call, ChatRequest, Sampled, TokenChunk, Turn

OnDelta = Callable[[int, Delta], None]
"""Choice index and delta; called on the event loop of the request it belongs to; must not block."""

OnStart = Callable[[tuple[str, ...], int], None]
"""Ids of the turns that a request will become, in the order of its choices, and the tokens of their prompt; called
before the first delta."""

StopCause = AbortCause | Literal["token_limit"]


class Choice:
    """One answer in flight; its call's id becomes the turn's id."""

    def __init__(self, idx: int, call: Call, reply: ReplyStream) -> None:
        self.idx = idx
        self.call = call
        self.reply = reply
        self.is_recorded = False
        self.first_token_at = 0.0
        """Unix time in seconds. 0: there is no token yet."""
        self._chunks: list[TokenChunk] = []
        self._num_read = 0
        """Chunks that went into the reply."""

    def take(self, chunk: TokenChunk) -> None:
        """Keeps these tokens; they are decoded when a listener wants deltas, or in the end."""
        if not self._chunks:
            self.first_token_at = time.time()
        self._chunks.append(chunk)

    def read(self) -> list[Delta]:
        """What the tokens that were not read yet add to the reply for certain."""
        token_ids = [token for chunk in self._chunks[self._num_read :] for token in chunk.token_ids]
        self._num_read = len(self._chunks)
        return self.reply.feed(token_ids) if token_ids else []

    def finish(self) -> list[Delta]:
        """What was not read yet, and what was held back of the reply."""
        return self.read() + self.reply.finish()

    def partial(self) -> Sampled:
        """What has arrived so far, as an aborted sample."""
        return Sampled(
            token_ids=tuple(token for chunk in self._chunks for token in chunk.token_ids),
            logprobs=tuple(logprob for chunk in self._chunks for logprob in chunk.logprobs),
            versions=tuple(version for chunk in self._chunks for version in chunk.versions),
            stop_reason="abort",
            seed=self.call.sampling.seed or 0,
        )


@dataclass(eq=False)
class Listener:
    """One who waits for a completion, on an event loop of its own."""

    loop: asyncio.AbstractEventLoop
    on_delta: OnDelta | None
    has_left: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, idx: int, delta: Delta) -> None:
        if self.on_delta is not None and not self.has_left:
            self.call(self.on_delta, idx, delta)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """At once on the listener's own loop; there soon from any other."""
        if self.loop is _running_loop():
            function(*args)
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function, *args)


class Completion:
    """One request in flight. Its session's lock guards every method but `perform`."""

    def __init__(self, request: ChatRequest, prompt: Prompt, choices: Sequence[Choice], *, started_at: float) -> None:
        self.request = request
        self.prompt = prompt
        self.choices = tuple(choices)
        self.started_at = started_at
        self.stop_cause: StopCause | None = None
        self.error: Exception | None = None
        self.is_heard = False
        """Somebody wants deltas as tokens come."""
        self._turns: dict[int, Turn] = {}
        self._loop = asyncio.get_running_loop()
        self._calls: tuple[Engine, asyncio.TaskGroup] | None = None
        """Where the engine calls run. None: they have not begun, or have ended."""
        self._listeners: list[Listener] = []
        self._sent: list[tuple[int, Delta]] = []

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Recorded so far, in the order of the choices."""
        return tuple(self._turns[idx] for idx in sorted(self._turns))

    @property
    def num_running(self) -> int:
        return sum(not choice.is_recorded for choice in self.choices)

    def join(
        self, on_start: OnStart | None = None, on_delta: OnDelta | None = None, *, is_live: bool = True
    ) -> Listener:
        """A new listener, given all deltas so far; call it on the listener's event loop.

        is_live: deltas are sent as tokens come. False: they may wait for the end of the answer.
        """
        if on_start is not None:
            on_start(tuple(choice.call.id for choice in self.choices), len(self.prompt.ids))
        listener = Listener(asyncio.get_running_loop(), on_delta)
        for idx, delta in self._sent:
            listener.send(idx, delta)
        self._listeners.append(listener)
        self.is_heard |= is_live and on_delta is not None
        return listener

    def leave(self, listener: Listener) -> bool:
        """Whether nobody waits any more and the completion is being stopped; the listener is sent nothing more."""
        listener.has_left = True
        if all(other.has_left for other in self._listeners):
            self.stop("client_cancel")
            return True
        return False

    def send(self, idx: int, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            self._sent.append((idx, delta))
            for listener in self._listeners:
                listener.send(idx, delta)

    def add(self, idx: int, turn: Turn) -> None:
        self._turns[idx] = turn

    def stop(self, cause: StopCause) -> None:
        """Asks for the engine calls to be aborted; the first cause stays. From any thread."""
        if self.stop_cause is None:
            self.stop_cause = cause
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._abort)

    def fail(self, error: Exception) -> None:
        """One answer failed: the others are stopped, and this is what the request raises."""
        if self.error is None:
            self.error = error
        self.stop("failed")

    def settle(self) -> None:
        """Everything is recorded that will be: those who wait go on."""
        if self.error is None and len(self._turns) < len(self.choices):
            self.error = BackendError("the engine ended the call before its first token; send the request again")
        for listener in self._listeners:
            listener.call(listener.settled.set)

    async def perform(
        self,
        engine: Engine,
        take: Callable[[Choice, TokenChunk], None],
        record: Callable[[Choice, Sampled], None],
        recalled: Callable[[Call], Sampled | None] = lambda _: None,
    ) -> None:
        """Has the engine sample all choices at once; each goes to `record` once, whole or as far as it came.

        recalled: what was sampled for a call before. None: the engine is asked.
        """

        def guarded(choice: Choice, chunk: TokenChunk) -> None:
            try:
                take(choice, chunk)
            except Exception as error:  # the boundary to the engine: a listener must not end its loop
                self.fail(error)

        async def sample(choice: Choice) -> None:
            try:
                if self.stop_cause is None:
                    sampled = recalled(choice.call)
                    if sampled is None:
                        sampled = await engine.generate(choice.call, partial(guarded, choice))
                    else:
                        guarded(choice, TokenChunk(sampled.token_ids, sampled.logprobs, sampled.versions))
                    record(choice, sampled)
            except Exception as error:  # the same boundary: whatever the engine raises ends this request, and no other
                self.fail(error)
            finally:
                if not choice.is_recorded:
                    record(choice, choice.partial())

        first, *others = self.choices
        async with asyncio.TaskGroup() as tasks:
            self._calls = (engine, tasks)
            try:
                # a task for each but one: most requests have one choice, and a task costs as much as some tokens
                waiting = [tasks.create_task(sample(choice)) for choice in others]
                await sample(first)
                await asyncio.gather(*waiting)
            finally:
                self._calls = None

    def _abort(self) -> None:
        """Ends the engine calls in flight; one that begins later sees that the completion is stopped."""
        if self._calls is not None:
            engine, tasks = self._calls
            for choice in self.choices:
                tasks.create_task(engine.abort(choice.call.id))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
