"""Faults around the protocols: requests read wrongly, errors, headers, keys, retries, leaving clients, templates."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ludus.checks.conformance.faults.base import Fault, on_the_wire, unread
from ludus.checks.conformance.local_server import ServerParts
from ludus.checks.conformance.rewrite import Headers, Json, Rewrite, put
from ludus.checks.conformance.sse import read_events
from ludus.episodes.handle import Handle
from ludus.episodes.keys import SessionKeys
from ludus.episodes.session import Session
from ludus.errors import AgentError
from ludus.text.chat import ChatText
from ludus.text.template import ChatTemplate

CHAT = "/chat/completions"


# ---- requests read wrongly


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


def _no_header(name: str, says: str, header: bytes, near: str) -> Fault:
    def drop(headers: Headers) -> Headers:
        return [pair for pair in headers if pair[0].lower() != header]

    return on_the_wire(name, says, Rewrite(headers=drop), near)


def _for_400(name: str, says: str, other: int) -> Fault:
    return on_the_wire(name, says, Rewrite(status=lambda status: other if status == 400 else status), "errors/errors")


def _plain_json(headers: Headers) -> Headers:
    stream = b"text/event-stream"
    return [(name, b"application/json" if value.startswith(stream) else value) for name, value in headers]


def _no_retry_headers(headers: Headers) -> Headers:
    return [pair for pair in headers if pair[0].lower() not in (b"x-stainless-retry-count", b"idempotency-key")]


# ---- whole applications


def buffered(app: ASGIApp) -> ASGIApp:
    """Sends a stream when it has ended."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[bytes] = []

        async def keep(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                return
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                await send({**message, "body": b"".join(parts)})

        await app(scope, receive, keep)

    return call


def deaf(app: ASGIApp) -> ASGIApp:
    """Never hears that a client has left."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
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

        await app(scope, listen, shout)

    return call


def silent(app: ASGIApp) -> ASGIApp:
    """Sends no comments, so nothing keeps a quiet stream open."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def without_comments(message: Message) -> None:
            body = message.get("body", b"")
            if body.startswith(b":") and not read_events(body.decode()):
                return
            await send(message)

        await app(scope, receive, without_comments)

    return call


def cached(app: ASGIApp) -> ASGIApp:
    """Answers an equal request as the first of its kind was answered, whoever asks."""
    known: dict[bytes, list[Message]] = {}

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        _, mark, route = scope["path"].rpartition("/v1/")
        if not mark:
            await app(scope, receive, send)
            return
        first = await receive()
        key = route.encode() + first.get("body", b"")
        if key in known:
            for message in known[key]:
                await send(message)
            return
        told: list[Message] = []

        async def keep(message: Message) -> None:
            told.append(message)
            await send(message)

        messages = [first]
        await app(scope, lambda: _next(messages, receive), keep)
        known[key] = told

    return call


async def _next(messages: list[Message], receive: Receive) -> Message:
    return messages.pop() if messages else await receive()


# ---- keys


class _AnyKeyAccepted(SessionKeys):
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
    unread("seed ignored", "the seed is not read", "seed", "chat/n", "chat/sam"),
    unread("n ignored", "one choice whatever is asked", "n", "chat/n"),
    unread("stop ignored", "stop strings are not read", "stop", "chat/stop"),
    unread("top_p ignored", "top_p is not read", "top_p", "chat/sampling"),
    on_the_wire("max_tokens off by one", "one token too many", Rewrite(CHAT, request=_one_token_more), "chat/limits"),
    on_the_wire("tool_choice none ignored", "calls are made", Rewrite(CHAT, request=_no_choice), "chat/tools"),
    unread("misspelt fields dropped", "unknown fields are left unread", "temprature", "errors/errors"),
    _for_400("200 instead of 400", "errors come as answers", 200),
    _for_400("500 instead of 400", "the client's faults are called the server's", 500),
    on_the_wire("another error shape", "errors are under `detail`", Rewrite("", body=_other_shape), "errors/errors"),
    on_the_wire(
        "fault not named",
        "errors name no field",
        Rewrite("", body=put("error.param", None)),
        "chat/sampling",
        "errors",
    ),
    _no_header("no x-should-retry", "SDKs are not told whether to try again", b"x-should-retry", "errors/headers"),
    _no_header("ignored in silence", "x-ludus-ignored is missing", b"x-ludus-ignored", "chat/headers"),
    on_the_wire(
        "stream as JSON", "a stream has another content type", Rewrite("", headers=_plain_json), "chat/streaming"
    ),
    on_the_wire(
        "retry sampled again",
        "a retry makes a second turn",
        Rewrite("", sent_headers=_no_retry_headers),
        "chat/retries",
    ),
    Fault(
        "stream at the end", "nothing leaves before the answer is whole", ServerParts(app=buffered), ("chat/streaming",)
    ),
    Fault("deaf to leaving", "the engine goes on when a client leaves", ServerParts(app=deaf), ("chat/streaming",)),
    Fault("no keep-alive", "a quiet stream is sent nothing", ServerParts(app=silent), ("chat/streaming",)),
    Fault(
        "answers shared", "an equal request gets another session's answer", ServerParts(app=cached), ("sessions/keys",)
    ),
    Fault("key not checked", "a wrong key is let in", ServerParts(keys=_AnyKeyAccepted), ("chat/keys", "models/keys")),
    Fault(
        "key beside URL not compared", "two sessions in one request pass", ServerParts(keys=_PathOnly), ("chat/keys",)
    ),
    Fault("line end lost", "no line end between turns", ServerParts(text=_lost_newline), ("chat/text",)),
    Fault(
        "content stripped",
        "the prompt lacks blanks around content",
        ServerParts(text=_stripped_content),
        ("chat/text",),
    ),
)
