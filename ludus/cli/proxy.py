"""A recording proxy in front of an external OpenAI-compatible API: it forwards requests, and records the conversation.

Knows: HTTP, the parts of Chat Completions that are shown, limits.  Knows not: tokens, which external models do not
send.
Invariant: requests and answers are forwarded unchanged, except that logprobs are requested. If a limit is met or the
API cannot be reached, the agent gets an error in the format of the protocol.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ludus.episodes.graph import SessionGraph
from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.errors import AgentError, BackendError
from ludus.gateway.dialects.base import error_reply
from ludus.gateway.dialects.chat.dialect import CHAT
from ludus.http.body import read_body
from ludus.http.server import HttpServer
from ludus.http.sse import DONE, whole_data
from ludus.types import UNKNOWN_PROMPT, Message, Sampled, Sampling

_TIMEOUT_S = 600.0  # the default timeout of OpenAI's SDK
_CHAT_PATH = "chat/completions"
_HOP_HEADERS = ("host", "content-length", "connection", "transfer-encoding", "accept-encoding", "content-encoding")


@dataclass(frozen=True, slots=True)
class ExternalReply:
    """What is known about the tokens of one answer."""

    num_tokens: int | None
    """None: not reported by the API."""
    mean_logprob: float | None
    """None: the API returned no logprobs."""


@dataclass(slots=True)
class ExternalSession:
    """An episode with an external model: its turns without tokens, and what is known about these, by turn id."""

    graph: SessionGraph
    limits: Limits
    replies: dict[str, ExternalReply] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Codes of the limits for which requests were refused."""
    num_calls: int = 0
    """Number of chat requests that were answered or are in flight."""

    def begin_call(self) -> None:
        """Count a request. Raises AgentError if a limit is met."""
        try:
            self.limits.check(num_turns=self.num_calls, num_asked=1, num_tokens=0, now=time.monotonic())
        except AgentError as error:
            self.refused.add(error.code)
            raise
        self.num_calls += 1

    def add_turn(self, body: bytes, answer: bytes) -> None:
        """Record the first choice as a turn; ignored if the body has no messages."""
        asked = json.loads(body)
        if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list):
            return
        events = [json.loads(data) for data in whole_data(answer) if data != DONE] or [json.loads(answer)]
        choices = [choice for event in events for choice in event.get("choices", ()) if choice.get("index", 0) == 0]
        logprobs = [token["logprob"] for one in choices for token in (one.get("logprobs") or {}).get("content") or ()]
        counts = [event["usage"]["completion_tokens"] for event in events if event.get("usage")]
        said = [one.get("message") or {"content": (one.get("delta") or {}).get("content")} for one in choices]
        messages = [Message(fields["role"], _text(fields)) for fields in asked["messages"]]
        follows = self.graph.match(messages, "").follows
        turn = self.graph.add_turn(
            turn_id=str(events[0]["id"]),
            prompt_ids=UNKNOWN_PROMPT,
            prefix=None,
            follows=None if follows is None else follows.id,
            fork=None,
            messages=messages,
            reply=Message("assistant", "".join(map(_text, said))),
            sampled=Sampled((), (), (), "stop"),
            sampling=Sampling(),
        )
        num_tokens = counts[-1] if counts else len(logprobs) or None
        self.replies[turn.id] = ExternalReply(num_tokens, fmean(logprobs) if logprobs else None)


class RecordingProxy:
    """Serves sessions on a port of this machine and forwards their requests. Use as a context manager."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url = url.rstrip("/")
        self._api_key = api_key
        self._open: dict[str, ExternalSession] = {}
        self._has_logprobs = True
        routes = [Route("/s/{secret}/v1/{rest:path}", self._answer, methods=["GET", "POST"])]
        self._server = HttpServer(
            Starlette(routes=routes), name="recording-proxy", beside=self._until_stopped, takes_any_body=True
        )
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"RecordingProxy({self._url!r}, sessions={len(self._open)})"

    def __enter__(self) -> RecordingProxy:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def open(self, limits: Limits = NO_LIMITS) -> str:
        """Open a session; returns its base URL. limits: max_tokens has no effect, as the number of tokens is not
        known."""
        secret = secrets.token_urlsafe(24)
        self._open[secret] = ExternalSession(SessionGraph(secret), limits)
        return f"{self._server.base_url}/s/{secret}/v1"

    def close(self, base_url: str) -> ExternalSession:
        """End the session, whose URL is then invalid; returns its record."""
        return self._open.pop(base_url.split("/")[-2])

    async def _until_stopped(self) -> None:
        async with self._client:
            await asyncio.Event().wait()

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._pass_on(request)
        except (AgentError, BackendError) as error:
            reply = error_reply(error)
            return JSONResponse(CHAT.vendor.error(reply), reply.status)

    async def _pass_on(self, request: Request) -> Response:
        session = self._open.get(request.path_params["secret"])
        if session is None:
            raise AgentError("this episode has ended", status=httpx.codes.UNAUTHORIZED, code="session_closed")
        body = await read_body(request)
        if request.method != "POST" or request.path_params["rest"] != _CHAT_PATH:
            return _relayed(await self._send(request, body), lambda _: None)
        session.begin_call()
        is_ok = False
        try:
            answer = await self._send(request, body)
            is_ok = answer.status_code == httpx.codes.OK
        finally:
            session.num_calls -= not is_ok
        return _relayed(answer, partial(session.add_turn, body) if is_ok else lambda _: None)

    async def _send(self, request: Request, body: bytes) -> httpx.Response:
        asked = _with_logprobs(body) if self._has_logprobs and request.method == "POST" else None
        if asked is not None:
            answer = await self._send_once(request, asked)
            if answer.status_code not in (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY):
                return answer
            self._has_logprobs = False
            await answer.aclose()
        return await self._send_once(request, body)

    async def _send_once(self, request: Request, body: bytes) -> httpx.Response:
        headers = {**_passed(request.headers), "authorization": f"Bearer {self._api_key}"}
        url = f"{self._url}/{request.path_params['rest']}"
        outgoing = self._client.build_request(request.method, url, content=body, headers=headers)
        try:
            return await self._client.send(outgoing, stream=True)
        except httpx.TransportError as error:
            words = f"the model at {self._url} cannot be reached: {type(error).__name__}: {error}"
            raise BackendError(words) from error


def _relayed(answer: httpx.Response, on_whole: Callable[[bytes], object]) -> Response:
    """A response that streams the answer. on_whole: called with the whole answer before its end is forwarded, because
    the agent may then end the episode."""

    async def chunks() -> AsyncIterator[bytes]:
        kept = [b""]
        async for chunk in answer.aiter_bytes():
            yield kept[-1]
            kept.append(chunk)
        on_whole(b"".join(kept))
        yield kept[-1]

    return StreamingResponse(
        chunks(), answer.status_code, _passed(answer.headers), background=BackgroundTask(answer.aclose)
    )


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_HEADERS}


def _with_logprobs(body: bytes) -> bytes | None:
    """The request with logprobs requested. None: it requests them already, or is no JSON object."""
    try:
        fields = json.loads(body)
    except ValueError:
        return None
    if not isinstance(fields, dict) or "logprobs" in fields:
        return None
    return json.dumps(fields | {"logprobs": True}).encode()


def _text(fields: Mapping[str, Any]) -> str:
    """The text of a message: its content, then its tool calls."""
    content = fields.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    functions = [call["function"] for call in fields.get("tool_calls") or ()]
    return "".join([content or "", *(f"{function['name']}({function['arguments']})" for function in functions)])
