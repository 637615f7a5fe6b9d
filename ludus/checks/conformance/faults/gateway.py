"""Faults around the protocols: requests read wrongly, errors, headers, keys, retries, leaving clients, templates."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ludus.checks.conformance.faults.base import Fault, on_the_wire
from ludus.checks.conformance.own import Parts
from ludus.checks.conformance.sse import read_events
from ludus.checks.conformance.tamper import Headers, Json, Tampering
from ludus.episodes.handle import Handle
from ludus.episodes.keys import SessionKeys
from ludus.episodes.session import Session
from ludus.errors import AgentError
from ludus.text.chat import ChatText
from ludus.text.template import ChatTemplate

CHAT = "/chat/completions"


# ---- requests read wrongly


def _without(*names: str) -> Callable[[Json], Json]:
    return lambda asked: {name: value for name, value in asked.items() if name not in names}


def _one_token_more(asked: Json) -> Json:
    named = {
        name: asked[name] + 1 for name in ("max_tokens", "max_completion_tokens") if isinstance(asked.get(name), int)
    }
    return {**asked, **named}


def _no_choice(asked: Json) -> Json:
    return {**asked, "tool_choice": "auto"} if asked.get("tool_choice") == "none" else asked


# ---- errors and headers


def _other_shape(body: Json, _asked: Json) -> Json:
    return {"detail": body["error"]["message"]} if "error" in body else body


def _no_param(body: Json, _asked: Json) -> Json:
    if "error" in body:
        body["error"]["param"] = None
    return body


def _drop_header(name: bytes) -> Callable[[Headers], Headers]:
    return lambda headers: [pair for pair in headers if pair[0].lower() != name]


def _plain_json(headers: Headers) -> Headers:
    stream = b"text/event-stream"
    return [(name, b"application/json" if value.startswith(stream) else value) for name, value in headers]


def _no_retry_headers(headers: Headers) -> Headers:
    return [pair for pair in headers if pair[0].lower() not in (b"x-stainless-retry-count", b"idempotency-key")]


# ---- whole applications


class _Buffered:
    """Sends a stream when it has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[bytes] = []

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                return
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                await send({**message, "body": b"".join(parts)})

        await self._app(scope, receive, keep)


class _Deaf:
    """Never hears that a client has left."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def listen() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                await asyncio.Event().wait()  # which nobody sets
            return message

        async def shout(message: Message) -> None:
            try:
                await send(message)
            except OSError:
                return

        await self._app(scope, listen, shout)


class _Silent:
    """Sends no comments, so nothing keeps a quiet stream open."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def without_comments(message: Message) -> None:
            body = message.get("body", b"")
            if body.startswith(b":") and not read_events(body.decode()):
                return
            await send(message)

        await self._app(scope, receive, without_comments)


class _Cache:
    """Answers an equal request as the first of its kind was answered, whoever asks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._known: dict[bytes, list[Message]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, mark, route = scope["path"].rpartition("/v1/")
        if not mark:
            await self._app(scope, receive, send)
            return
        first = await receive()
        key = route.encode() + first.get("body", b"")
        if key in self._known:
            for message in self._known[key]:
                await send(message)
            return
        told: list[Message] = []

        async def keep(message: Message) -> None:
            told.append(message)
            await send(message)

        messages = [first]
        await self._app(scope, lambda: _next(messages, receive), keep)
        self._known[key] = told


async def _next(messages: list[Message], receive: Receive) -> Message:
    return messages.pop() if messages else await receive()


# ---- keys


class _OpenDoor(SessionKeys):
    """Lets a wrong key in, to the session that was opened last."""

    _last = ""

    def add(self, session: Session, **options: Any) -> str:
        self._last = super().add(session, **options)
        return self._last

    def find(self, path_secret: str | None, headers: Mapping[str, str], **options: Any) -> Handle:
        try:
            return super().find(path_secret, headers, **options)
        except AgentError:
            return super().find(self._last, {}, **options)


class _PathOnly(SessionKeys):
    """Does not compare the key with the URL."""

    def find(self, path_secret: str | None, headers: Mapping[str, str], **options: Any) -> Handle:
        others = {} if path_secret is not None else headers
        return super().find(path_secret, others, **options)


# ---- templates


def _lost_newline(text: ChatText) -> ChatText:
    return _with_template(text, "{{- '<|im_end|>\\n' -}}", "{{- '<|im_end|>' -}}")


def _stripped_content(text: ChatText) -> ChatText:
    return _with_template(text, "message.content or ''", "(message.content or '') | trim")


def _with_template(text: ChatText, old: str, new: str) -> ChatText:
    source = text.template.source
    assert old in source, f"the template has no {old!r}"
    # The last place is that after a message.
    before, _, after = source.rpartition(old)
    return dataclasses.replace(text, template=ChatTemplate(before + new + after, text.template.special_tokens))


GATEWAY_FAULTS = (
    on_the_wire(
        "seed ignored", "the seed is not read", Tampering(CHAT, request=_without("seed")), "chat/n", "chat/sam"
    ),
    on_the_wire("n ignored", "one choice whatever is asked", Tampering(CHAT, request=_without("n")), "chat/n"),
    on_the_wire("stop ignored", "stop strings are not read", Tampering(CHAT, request=_without("stop")), "chat/stop"),
    on_the_wire("top_p ignored", "top_p is not read", Tampering(CHAT, request=_without("top_p")), "chat/sampling"),
    on_the_wire("max_tokens off by one", "one token too many", Tampering(CHAT, request=_one_token_more), "chat/limits"),
    on_the_wire("tool_choice none ignored", "calls are made", Tampering(CHAT, request=_no_choice), "chat/tools"),
    on_the_wire(
        "misspelt fields dropped",
        "unknown fields are left unread",
        Tampering("", request=_without("temprature")),
        "errors/errors",
    ),
    on_the_wire(
        "200 instead of 400",
        "errors come as answers",
        Tampering("", status=lambda status: 200 if status == 400 else status),
        "errors/errors",
    ),
    on_the_wire(
        "500 instead of 400",
        "the client's faults are called the server's",
        Tampering("", status=lambda status: 500 if status == 400 else status),
        "errors/errors",
    ),
    on_the_wire("another error shape", "errors are under `detail`", Tampering("", body=_other_shape), "errors/errors"),
    on_the_wire("fault not named", "errors name no field", Tampering("", body=_no_param), "chat/sampling", "errors"),
    on_the_wire(
        "no x-should-retry",
        "SDKs are not told whether to try again",
        Tampering("", headers=_drop_header(b"x-should-retry")),
        "errors/headers",
    ),
    on_the_wire(
        "ignored in silence",
        "x-ludus-ignored is missing",
        Tampering("", headers=_drop_header(b"x-ludus-ignored")),
        "chat/headers",
    ),
    on_the_wire(
        "stream as JSON", "a stream has another content type", Tampering("", headers=_plain_json), "chat/streaming"
    ),
    on_the_wire(
        "retry sampled again",
        "a retry makes a second turn",
        Tampering("", sent_headers=_no_retry_headers),
        "chat/retries",
    ),
    Fault("stream at the end", "nothing leaves before the answer is whole", Parts(app=_Buffered), ("chat/streaming",)),
    Fault("deaf to leaving", "the engine goes on when a client leaves", Parts(app=_Deaf), ("chat/streaming",)),
    Fault("no keep-alive", "a quiet stream is sent nothing", Parts(app=_Silent), ("chat/streaming",)),
    Fault("answers shared", "an equal request gets another session's answer", Parts(app=_Cache), ("sessions/keys",)),
    Fault("key not checked", "a wrong key is let in", Parts(keys=_OpenDoor), ("chat/keys", "models/keys")),
    Fault("key beside URL not compared", "two sessions in one request pass", Parts(keys=_PathOnly), ("chat/keys",)),
    Fault("line end lost", "no line end between turns", Parts(text=_lost_newline), ("chat/text",)),
    Fault("content stripped", "the prompt lacks blanks around content", Parts(text=_stripped_content), ("chat/text",)),
)
