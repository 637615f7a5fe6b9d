"""One request in flight: its growing answers, the clients that wait for it, and how it is stopped.

Knows: event loops, listeners, tokens as they come.  Knows not: the session's graph, limits, how prompts are chosen.
Invariant: a listener gets every delta once and in order, no matter when it joined and on which event loop it waits.

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
"""Called with choice index and delta, on the event loop of the request; must not block."""

OnStart = Callable[[tuple[str, ...], int], None]
"""Called before the first delta with the ids of the turns that the request will become, in the order of its choices,
and the number of tokens of their prompt."""

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
        """How many chunks were decoded into the reply."""

    def take(self, chunk: TokenChunk) -> None:
        """Keep these tokens; they are decoded when a listener wants deltas, or at the end."""
        if not self._chunks:
            self.first_token_at = time.time()
        self._chunks.append(chunk)

    def read(self) -> list[Delta]:
        """Decode the tokens that were not decoded yet; the deltas that are certain."""
        token_ids = [token for chunk in self._chunks[self._num_read :] for token in chunk.token_ids]
        self._num_read = len(self._chunks)
        return self.reply.feed(token_ids) if token_ids else []

    def finish(self) -> list[Delta]:
        """Decode the rest; the remaining deltas, those held back included."""
        return self.read() + self.reply.finish()

    def partial(self) -> Sampled:
        """The tokens so far, as an aborted sample."""
        return Sampled(
            token_ids=tuple(token for chunk in self._chunks for token in chunk.token_ids),
            logprobs=tuple(logprob for chunk in self._chunks for logprob in chunk.logprobs),
            versions=tuple(version for chunk in self._chunks for version in chunk.versions),
            stop_reason="abort",
            seed=self.call.sampling.seed or 0,
        )


@dataclass(eq=False)
class Listener:
    """A request that waits for a completion, on its own event loop."""

    loop: asyncio.AbstractEventLoop
    on_delta: OnDelta | None
    has_left: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, idx: int, delta: Delta) -> None:
        if self.on_delta is not None and not self.has_left:
            self.call(self.on_delta, idx, delta)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call at once if this is the listener's event loop; else have it called there soon."""
        if self.loop is _running_loop():
            function(*args)
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function, *args)


class Completion:
    """One request in flight. Hold the session's lock for every method but `perform`."""

    def __init__(self, request: ChatRequest, prompt: Prompt, choices: Sequence[Choice], *, started_at: float) -> None:
        self.request = request
        self.prompt = prompt
        self.choices = tuple(choices)
        self.started_at = started_at
        self.stop_cause: StopCause | None = None
        self.error: Exception | None = None
        self.is_heard = False
        """Some listener wants deltas as tokens come."""
        self._turns: dict[int, Turn] = {}
        self._loop = asyncio.get_running_loop()
        self._calls: tuple[Engine, asyncio.TaskGroup] | None = None
        """The engine and the tasks of the running calls. None: they have not begun, or have ended."""
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
        """A new listener, which gets all deltas so far. Call this on the listener's event loop.

        is_live: deltas are sent as tokens come. False: they may be sent at the end of the answer.
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
        """Send this listener nothing more. Returns whether it was the last one, so that the completion is being
        stopped."""
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
        """Have the engine calls aborted. If called again, the first cause is kept. From any thread."""
        if self.stop_cause is None:
            self.stop_cause = cause
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._abort)

    def fail(self, error: Exception) -> None:
        """One answer failed: stop the others. The request raises the first such error."""
        if self.error is None:
            self.error = error
        self.stop("failed")

    def settle(self) -> None:
        """Everything is recorded: wake the listeners."""
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
        """Have the engine sample all choices at once. `record` is called once for each, with all its tokens or those
        that came.

        recalled: the answer that was sampled for this call earlier. None: there is none, and the engine is called.
        """

        def guarded(choice: Choice, chunk: TokenChunk) -> None:
            try:
                take(choice, chunk)
            except Exception as error:  # the boundary to the engine: a listener's error must not end the engine's loop
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
            except Exception as error:  # the same boundary: an engine's error ends this request only
                self.fail(error)
            finally:
                if not choice.is_recorded:
                    record(choice, choice.partial())

        first, *others = self.choices
        async with asyncio.TaskGroup() as tasks:
            self._calls = (engine, tasks)
            try:
                # the first needs no task: most requests have one choice, and a task costs as much as some tokens
                waiting = [tasks.create_task(sample(choice)) for choice in others]
                await sample(first)
                await asyncio.gather(*waiting)
            finally:
                self._calls = None

    def _abort(self) -> None:
        """Abort the running engine calls; those that have not begun see that the completion is stopped."""
        if self._calls is not None:
            engine, tasks = self._calls
            for choice in self.choices:
                tasks.create_task(engine.abort(choice.call.id))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
