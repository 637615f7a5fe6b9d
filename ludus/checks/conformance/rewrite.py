"""ASGI middleware that changes requests and answers, to inject faults into a gateway from outside.

Knows: ASGI messages, JSON, event streams.  Knows not: protocols, faults.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ludus.checks.conformance.sse import DONE, Event, read_events, write_events

Json = dict[str, Any]
Headers = list[tuple[bytes, bytes]]
OnEvent = Callable[[Event], Sequence[Event]]
"""Returns the events that replace an event."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The changes; by default everything is parsed and serialized again unchanged."""

    path: str = ""
    """Only requests whose path ends with this."""
    sent_headers: Callable[[Headers], Headers] = lambda headers: headers
    request: Callable[[Json], Json] = lambda asked: asked
    status: Callable[[int], int] = lambda status: status
    headers: Callable[[Headers], Headers] = lambda headers: headers
    body: Callable[[Json, Json], Json] = lambda body, _asked: body
    """Changes an answer that is not streamed; gets the answer and the request."""
    events: Callable[[Json], OnEvent] = lambda _asked: lambda event: [event]
    """Called with the request of each stream; returns the function that changes its events."""
    comment: Callable[[bytes], bytes] = lambda comment: comment


class RewritingApp:
    """`app` with its requests and answers changed."""

    def __init__(self, app: ASGIApp, rewrite: Rewrite) -> None:
        self._app = app
        self._how = rewrite

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        how = self._how
        if not scope["path"].endswith(how.path):
            await self._app(scope, receive, send)
            return
        scope = {**scope, "headers": how.sent_headers(list(scope["headers"]))}
        raw = await Request(scope, receive).body()
        asked = _object(raw)
        if asked:
            asked = how.request(asked)
            raw = json.dumps(asked).encode()
        await self._app(scope, again(raw, receive), _Answer(how, asked, send))


class _Answer:
    """Receives the application's messages, and sends the changed ones."""

    def __init__(self, how: Rewrite, asked: Json, send: Send) -> None:
        self._how = how
        self._send = send
        self._asked = asked
        self._on_event = how.events(asked)
        self._head: Message | None = None
        self._is_stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # Held back until the body is known, as the headers contain its length.
            self._head = message
            self._is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
            return
        body = self._changed(message.get("body", b""))
        if self._head is not None:
            await self._send(self._changed_head(self._head, len(body)))
            self._head = None
        await self._send({**message, "body": body})

    def _changed_head(self, head: Message, num_bytes: int) -> Message:
        headers = self._how.headers(list(head["headers"]))
        if not self._is_stream:
            others = [(name, value) for name, value in headers if name.lower() != b"content-length"]
            headers = [*others, (b"content-length", str(num_bytes).encode())]
        return {**head, "status": self._how.status(head["status"]), "headers": headers}

    def _changed(self, body: bytes) -> bytes:
        if self._is_stream:
            events = read_events(body.decode())
            changed = (new for old in events for new in self._on_event(old))
            return write_events(changed) if events else self._how.comment(body)
        answer = _object(body)
        return json.dumps(self._how.body(answer, self._asked), ensure_ascii=False).encode() if answer else body


def changed(event: Event, value: Json) -> Event:
    """`event` with other data."""
    return replace(event, data=json.dumps(value, ensure_ascii=False))


def each_json(change: Callable[[Json], Json | None]) -> Callable[[Json], OnEvent]:
    """Change the data of every event except `[DONE]`; None drops the event."""

    def on_event(event: Event) -> Sequence[Event]:
        if event.data == DONE:
            return [event]
        value = change(event.json)
        return [] if value is None else [changed(event, value)]

    return lambda _asked: on_event


def find(value: Any, at: str) -> Iterator[tuple[Any, Any]]:
    """Container and key of each value at a path such as `choices.*.index`, where `*` means every element."""
    name, _, rest = at.partition(".")
    keys: Any = range(len(value or ())) if name == "*" else [name] if isinstance(value, dict) and name in value else []
    for key in keys:
        if rest:
            yield from find(value[key], rest)
        else:
            yield value, key


def put(at: str, new: Any, *kinds: str) -> Callable[..., Json]:
    """A change that replaces the values at a path, if there are any.

    new: the value, or a function of the old one. kinds: only in events whose type begins with one of these; none given:
    in all.
    """

    def change(value: Json, *_asked: Json) -> Json:
        if not kinds or value.get("type", "").startswith(kinds):
            for holder, key in find(value, at):
                holder[key] = new(holder[key]) if callable(new) else new
        return value

    return change


def text_of(event: Event, at: str) -> str:
    """The text at a path of an event."""
    return "" if event.data == DONE else "".join(holder[key] or "" for holder, key in find(event.json, at))


def numbered(change: Callable[[Event, int], Sequence[Event]], at: str) -> Callable[[Json], OnEvent]:
    """Number the events with text at a path, from 1, and replace each by `change` of it; others are unchanged."""

    def events(_asked: Json) -> OnEvent:
        numbers = itertools.count(1)
        return lambda event: change(event, next(numbers)) if text_of(event, at) else [event]

    return events


def again(raw: bytes, receive: Receive) -> Receive:
    """A `receive` that returns `raw` as the body, then the original messages."""
    left: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again


def _object(raw: bytes) -> Json:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
