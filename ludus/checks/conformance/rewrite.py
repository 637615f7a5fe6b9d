"""An application whose requests and answers are changed on their way: how a fault is put into a gateway from outside.

Knows: ASGI messages, JSON, event streams.  Knows not: protocols, what a fault is good for.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ludus.checks.conformance.sse import DONE, Event, read_events, write_events

Json = dict[str, Any]
Headers = list[tuple[bytes, bytes]]
OnEvent = Callable[[Event], Sequence[Event]]
"""What is sent instead of one event."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What is changed. None, for each of them: nothing."""

    path: str = ""
    """Only requests whose path ends like this."""
    sent_headers: Callable[[Headers], Headers] | None = None
    request: Callable[[Json], Json] | None = None
    status: Callable[[int], int] | None = None
    headers: Callable[[Headers], Headers] | None = None
    body: Callable[[Json, Json], Json] | None = None
    """The answer at once, and what was asked."""
    events: Callable[[Json], OnEvent] | None = None
    """Made for each stream, from what was asked."""


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
        if how.sent_headers is not None:
            scope = {**scope, "headers": how.sent_headers(list(scope["headers"]))}
        raw = await _whole_body(receive)
        asked = _object(raw)
        if how.request is not None and asked:
            asked = how.request(asked)
            raw = json.dumps(asked).encode()
        await self._app(scope, _again(raw, receive), _Answer(how, asked, send))


class _Answer:
    """Takes the application's messages and sends what became of them."""

    def __init__(self, how: Rewrite, asked: Json, send: Send) -> None:
        self._how = how
        self._send = send
        self._asked = asked
        self._on_event = None if how.events is None else how.events(asked)
        self._head: Message | None = None
        self._is_stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # Kept until the body is known: its length stands in the head.
            self._head = self._changed_head(message)
            return
        body = self._changed_body(message.get("body", b""))
        if self._head is not None:
            await self._send(self._head if self._is_stream else _with_length(self._head, len(body)))
            self._head = None
        await self._send({**message, "body": body})

    def _changed_head(self, head: Message) -> Message:
        headers = list(head["headers"])
        self._is_stream = any(value.startswith(b"text/event-stream") for _, value in headers)
        status = head["status"] if self._how.status is None else self._how.status(head["status"])
        return {
            **head,
            "status": status,
            "headers": headers if self._how.headers is None else self._how.headers(headers),
        }

    def _changed_body(self, body: bytes) -> bytes:
        if self._is_stream:
            return body if self._on_event is None else self._changed_events(body, self._on_event)
        answer = _object(body)
        if self._how.body is None or not answer:
            return body
        return json.dumps(self._how.body(answer, self._asked), ensure_ascii=False).encode()

    def _changed_events(self, body: bytes, on_event: OnEvent) -> bytes:
        events = read_events(body.decode())
        if not events:
            return body  # a comment
        return write_events(event for old in events for event in on_event(old))


NOTHING = Rewrite(
    sent_headers=lambda headers: headers,
    request=lambda asked: asked,
    status=lambda status: status,
    headers=lambda headers: headers,
    body=lambda body, _asked: body,
    events=lambda _asked: lambda event: [event],
)
"""Everything is taken apart and put together again as it was."""


def changed(event: Event, value: Json) -> Event:
    """`event` with other data."""
    return replace(event, data=json.dumps(value, ensure_ascii=False))


def each_json(change: Callable[[Json], Json | None]) -> Callable[[Json], OnEvent]:
    """Changes the data of every event but `[DONE]`; None drops the event."""

    def on_event(event: Event) -> Sequence[Event]:
        if event.data == DONE:
            return [event]
        value = change(event.json)
        return [] if value is None else [changed(event, value)]

    return lambda _asked: on_event


def put(at: str, new: Any, *kinds: str) -> Callable[..., Json]:
    """Exchanges what stands at a path such as `choices.*.index`, where `*` is every element; what is not there stays.

    new: the value, or a function of the old one. kinds: only in events whose type begins so. None: in all.
    """

    def walk(value: Any, names: Sequence[str]) -> None:
        name, *rest = names
        keys: Any = (
            range(len(value or ())) if name == "*" else (name,) if isinstance(value, dict) and name in value else ()
        )
        for key in keys:
            if rest:
                walk(value[key], rest)
            else:
                value[key] = new(value[key]) if callable(new) else new

    def change(value: Json, *_asked: Json) -> Json:
        if not kinds or value.get("type", "").startswith(kinds):
            walk(value, at.split("."))
        return value

    return change


def numbered(
    change: Callable[[Event, int], Sequence[Event]], has_number: Callable[[Event], object]
) -> Callable[[Json], OnEvent]:
    """Counts the events that `has_number`, from 1, and sends what `change` makes of each; the others stay."""

    def events(_asked: Json) -> OnEvent:
        numbers = itertools.count(1)
        return lambda event: change(event, next(numbers)) if has_number(event) else [event]

    return events


def _object(raw: bytes) -> Json:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


async def _whole_body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    return b"".join(parts)


def _again(raw: bytes, receive: Receive) -> Receive:
    """Returns `raw` as the body, then whatever comes."""
    is_sent = False

    async def told() -> Message:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": raw, "more_body": False}

    return told


def _with_length(head: Message, num_bytes: int) -> Message:
    others = [(name, value) for name, value in head["headers"] if name.lower() != b"content-length"]
    return {**head, "headers": [*others, (b"content-length", str(num_bytes).encode())]}
