"""Answers one request: runs the recorder, watches whether the client leaves, and writes the answer as it comes.

Knows: ASGI messages, one dialect, one session.  Knows not: routes, keys, where the bytes go.
Invariants: when the client leaves, the work is cancelled; an error before the first token becomes an HTTP status, a
later one the last event of the stream; the turns are recorded before the end of the answer is written.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote

import pydantic_core
from starlette.types import Receive, Send

from ludus.episodes.completion import OnDelta
from ludus.episodes.session import Session
from ludus.errors import InternalError, LudusError
from ludus.gateway.dialects.base import (
    Answer,
    Dialect,
    ErrorReply,
    JsonObject,
    ParsedRequest,
    StreamWriter,
    error_reply,
)
from ludus.text.parsers.base import Delta
from ludus.types import Turn

logger = logging.getLogger(__name__)

# A comment in the event-stream format: every client reads it and none shows it to its caller.
KEEP_ALIVE = b": keep-alive\n\n"
MOST_UNDECODED_CHARS = 200  # of a header: enough to see what went wrong, far below what proxies refuse
Headers = dict[str, str]
# Proxies that buffer would turn a stream into one late answer; the last header is nginx's word for "do not".
EVENT_STREAM: Headers = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """A parsed request with its session and the headers of its answer."""

    session: Session
    parsed: ParsedRequest
    headers: Headers

    @property
    def model_name(self) -> str:
        """The model name that the answer reports."""
        return self.session.names.name


@dataclass(frozen=True, slots=True)
class _Delta:
    choice_idx: int
    delta: Delta


_Ended = tuple[Turn, ...] | LudusError
_Event = _Delta | _Ended


class _LeftError(Exception):
    """The client has left."""


@dataclass(eq=False)
class Exchange:
    """Answers one request on the running loop."""

    request: GatewayRequest
    dialect: Dialect
    receive: Receive
    send: Send
    keep_alive_s: float
    _events: asyncio.Queue[_Event] = field(default_factory=asyncio.Queue)
    _turn_ids: tuple[str, ...] = ()
    """Known, like the length of the prompt, once the recorder has accepted the request and before any delta."""
    _num_prompt_tokens: int = 0
    _has_opened: bool = False

    async def run(self) -> bool:
        """Answer the request; returns whether the client was sent the whole answer. Cancelling it cancels the work."""
        write = self._write_stream if self.request.parsed.stream else self._write_at_once
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch())
                try:
                    return await write(group)
                except OSError:
                    pass  # the way to the client broke while it was written to
                finally:
                    watch.cancel()
        except* _LeftError:
            pass
        return False

    async def _watch(self) -> None:
        """Raises as soon as the client leaves, which cancels everything else."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        raise _LeftError

    async def _complete(self, on_delta: OnDelta) -> _Ended:
        session = self.request.session
        try:
            return await self._turns(session, on_delta)
        except LudusError as error:
            return error
        except Exception as error:
            logger.exception("completion.failed session=%s", session.id)
            return InternalError(f"{type(error).__name__}: {error}")

    async def _turns(self, session: Session, on_delta: OnDelta) -> tuple[Turn, ...]:
        """The turns of all requests, in order. They also begin in that order, before any of them has a token."""
        requests, is_live, tasks = self.request.parsed.requests, self.request.parsed.stream, []
        if len(requests) == 1:
            return await session.complete(requests[0], on_delta, on_start=self._on_start, is_live=is_live)
        try:
            async with asyncio.TaskGroup() as group:
                for i, request in enumerate(requests):
                    shifted = partial(_pass_shifted, on_delta, i * request.n)
                    answer = session.complete(request, shifted, on_start=self._on_start, is_live=is_live)
                    tasks.append(group.create_task(answer))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return tuple(turn for task in tasks for turn in task.result())

    def _on_start(self, turn_ids: tuple[str, ...], num_prompt_tokens: int) -> None:
        self._turn_ids += turn_ids
        self._num_prompt_tokens += num_prompt_tokens

    # ---- the answer at once

    async def _write_at_once(self, _group: asyncio.TaskGroup) -> bool:
        deltas: list[list[Delta]] = [[] for request in self.request.parsed.requests for _ in range(request.n)]
        ended = await self._complete(lambda choice_idx, delta: deltas[choice_idx].append(delta))
        if isinstance(ended, LudusError):
            await send_error(self.send, self.dialect, error_reply(ended))
            return False
        answer = self._answer(ended, tuple(map(tuple, deltas)))
        body = self.dialect.response(answer, self.request.parsed, self.request.model_name)
        await send_json(self.send, 200, body, {**self.request.headers, **_undecoded(ended)})
        return True

    # ---- the answer as it comes

    async def _write_stream(self, group: asyncio.TaskGroup) -> bool:
        async def complete() -> None:
            self._events.put_nowait(await self._complete(self._on_delta))

        work = group.create_task(complete(), name=f"ludus-complete-{self.request.session.id}")
        try:
            return await self._write_events()
        finally:
            work.cancel()

    def _on_delta(self, choice_idx: int, delta: Delta) -> None:
        self._events.put_nowait(_Delta(choice_idx, delta))

    async def _write_events(self) -> bool:
        writer = self.dialect.writer(self.request.parsed, self.request.model_name, time.time())
        is_head_sent = False
        while True:
            events = await self._next_events()
            if not is_head_sent:
                if events and isinstance(events[0], LudusError):
                    await send_error(self.send, self.dialect, error_reply(events[0]))
                    return False
                await send_head(self.send, 200, {**EVENT_STREAM, **self.request.headers})
                is_head_sent = True
            body = b"".join(self._wire(writer, event) for event in events)
            has_ended = bool(events) and not isinstance(events[-1], _Delta)
            await send_body(self.send, body or KEEP_ALIVE, more=not has_ended)
            if has_ended:
                return isinstance(events[-1], tuple)

    async def _next_events(self) -> list[_Event]:
        """All waiting events, once there is one. Empty: none came for so long that a keep-alive is due."""
        try:
            async with asyncio.timeout(self.keep_alive_s):
                events = [await self._events.get()]
        except TimeoutError:
            return []
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events

    def _wire(self, writer: StreamWriter, event: _Event) -> bytes:
        if isinstance(event, LudusError):
            return writer.error(error_reply(event))
        opening = b"" if self._has_opened else writer.start(self._turn_ids, self._num_prompt_tokens)
        self._has_opened = True
        if isinstance(event, _Delta):
            return opening + writer.delta(event.choice_idx, event.delta)
        return opening + writer.finish(self._answer(event))

    def _answer(self, turns: tuple[Turn, ...], deltas: tuple[tuple[Delta, ...], ...] = ()) -> Answer:
        """deltas: by choice; some dialects need them for unstreamed answers too."""
        session = self.request.session
        return Answer(turns, self._num_prompt_tokens, session.token_text, deltas, session.given_ids)


def _pass_shifted(on_delta: OnDelta, first_choice_idx: int, choice_idx: int, delta: Delta) -> None:
    on_delta(first_choice_idx + choice_idx, delta)


def _undecoded(turns: tuple[Turn, ...]) -> Headers:
    """A header with the number of tool calls that could not be parsed, and the text of the first."""
    texts = [text for turn in turns for text in turn.undecoded]
    return {"x-ludus-undecoded": f"{len(texts)} {quote(texts[0])[:MOST_UNDECODED_CHARS]}"} if texts else {}


async def send_error(send: Send, dialect: Dialect, error: ErrorReply) -> None:
    # The SDK retries 409 and every 5xx unless a header says that retrying cannot help.
    retry = {"x-should-retry": "true" if error.may_retry else "false"}
    await send_json(send, error.status, dialect.vendor.error(error), retry)


async def send_json(send: Send, status: int, body: JsonObject, headers: Headers) -> None:
    content = pydantic_core.to_json(body)
    length = {"content-type": "application/json", "content-length": str(len(content))}
    await send_head(send, status, {**length, **headers})
    await send_body(send, content, more=False)


async def send_head(send: Send, status: int, headers: Headers) -> None:
    raw: Sequence[tuple[bytes, bytes]] = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def send_body(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
