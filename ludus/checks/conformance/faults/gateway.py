"""Faults outside of the protocols: misread requests, errors, headers, keys, retries, disconnects, templates."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ludus.checks.conformance.faults.base import Fault, everywhere, unread, wire
from ludus.checks.conformance.local_server import ServerParts
from ludus.checks.conformance.rewrite import Headers, Json, again, put
from ludus.episodes.handle import Handle
from ludus.episodes.keys import SessionKeys
from ludus.episodes.session import Session
from ludus.errors import AgentError
from ludus.text.chat import ChatText
from ludus.text.template import ChatTemplate

LIMITS = ("max_tokens", "max_completion_tokens")


# ---- requests read wrongly


def _one_token_more(asked: Json) -> Json:
    return {name: value + 1 if name in LIMITS and isinstance(value, int) else value for name, value in asked.items()}


def _no_choice(asked: Json) -> Json:
    return {**asked, "tool_choice": "auto"} if asked.get("tool_choice") == "none" else asked


# ---- errors and headers


def _other_shape(body: Json, _asked: Json) -> Json:
    return {"detail": body["error"]["message"]} if "error" in body else body


def _no_400(other: int, status: int) -> int:
    return other if status == 400 else status


def _without(names: tuple[bytes, ...], headers: Headers) -> Headers:
    return [pair for pair in headers if pair[0].lower() not in names]


def _plain_json(headers: Headers) -> Headers:
    stream = b"text/event-stream"
    return [(name, b"application/json" if value.startswith(stream) else value) for name, value in headers]


RETRIES = (b"x-stainless-retry-count", b"idempotency-key")
RETRY, IGNORED = (b"x-should-retry",), (b"x-ludus-ignored",)


# ---- whole applications


def buffered(app: ASGIApp) -> ASGIApp:
    """Buffers a stream until it has ended."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[bytes] = []

        async def keep(message: Message) -> None:
            parts.append(message.get("body", b""))
            if message["type"] == "http.response.start":
                await send(message)
            elif not message.get("more_body", False):
                await send({**message, "body": b"".join(parts)})

        await app(scope, receive, keep)

    return call


def deaf(app: ASGIApp) -> ASGIApp:
    """Never reports that a client has disconnected."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        async def listen() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                await asyncio.Event().wait()  # for ever
            return message

        async def shout(message: Message) -> None:
            with contextlib.suppress(OSError):
                await send(message)

        await app(scope, listen, shout)

    return call


def cached(app: ASGIApp) -> ASGIApp:
    """Caches answers: equal requests get the same answer, even in other sessions."""
    known: dict[bytes, list[Message]] = {}

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        _, mark, route = scope["path"].rpartition("/v1/")
        body = await Request(scope, receive).body()
        key = route.encode() + body
        sent: list[Message] = []

        async def keep(message: Message) -> None:
            sent.append(message)
            await send(message)

        if not mark or key not in known:
            await app(scope, again(body, receive), keep)
            known[key] = sent
            return
        for message in known[key]:
            await send(message)

    return call


# ---- keys


class _AnyKeyAccepted(SessionKeys):
    """Accepts a wrong key for the session that was opened last."""

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


def _template(old: str, new: str) -> ServerParts:
    """Replace the last occurrence of a text in the template, which is the one after a message."""

    def change(text: ChatText) -> ChatText:
        before, found, after = text.template.source.rpartition(old)
        assert found, f"the template has no {old!r}"
        return dataclasses.replace(text, template=ChatTemplate(before + new + after, text.template.special_tokens))

    return ServerParts(text=change)


LINE_END, CONTENT = "{{- '<|im_end|>\\n' -}}", "message.content or ''"
NO_LINE_END = _template(LINE_END, "{{- '<|im_end|>' -}}")
TRIMMED = _template(CONTENT, f"({CONTENT}) | trim")

GATEWAY_FAULTS = (
    unread("seed ignored", "the seed is not read", "seed", "chat/n", "chat/sam"),
    unread("n ignored", "one choice whatever is asked", "n", "chat/n"),
    unread("stop ignored", "stop strings are not read", "stop", "chat/stop"),
    unread("top_p ignored", "top_p is not read", "top_p", "chat/sampling"),
    unread("misspelt fields dropped", "unknown fields are left unread", "temprature", "errors/errors"),
    wire("max_tokens off by one", "one token too many", "chat/limits", request=_one_token_more),
    wire("tool_choice none ignored", "calls are made", "chat/tools", request=_no_choice),
    everywhere("200 instead of 400", "errors come as answers", "errors/errors", status=partial(_no_400, 200)),
    everywhere("500 instead of 400", "clients' faults are the server's", "errors/errors", status=partial(_no_400, 500)),
    everywhere("another error shape", "errors are under `detail`", "errors/errors", body=_other_shape),
    everywhere("fault not named", "errors name no field", "chat/sampling", "errors", body=put("error.param", None)),
    everywhere("no x-should-retry", "SDKs may not try again", "errors/headers", headers=partial(_without, RETRY)),
    everywhere("ignored in silence", "x-ludus-ignored is missing", "chat/headers", headers=partial(_without, IGNORED)),
    everywhere("stream as JSON", "a stream has another content type", "chat/streaming", headers=_plain_json),
    everywhere("retry sampled again", "a retry is a turn", "chat/retries", sent_headers=partial(_without, RETRIES)),
    everywhere("no keep-alive", "a quiet stream is sent nothing", "chat/streaming", comment=lambda _: b""),
    Fault("stream at the end", "nothing leaves before the whole", ServerParts(app=buffered), ("chat/streaming",)),
    Fault("deaf to leaving", "the engine goes on when a client leaves", ServerParts(app=deaf), ("chat/streaming",)),
    Fault("answers shared", "equal requests get another's answer", ServerParts(app=cached), ("sessions/keys",)),
    Fault("key not checked", "a wrong key is let in", ServerParts(keys=_AnyKeyAccepted), ("chat/keys", "models/keys")),
    Fault("key beside URL not compared", "two sessions pass", ServerParts(keys=_PathOnly), ("chat/keys",)),
    Fault("line end lost", "no line end between turns", NO_LINE_END, ("chat/text",)),
    Fault("content stripped", "the prompt lacks blanks around content", TRIMMED, ("chat/text",)),
)
