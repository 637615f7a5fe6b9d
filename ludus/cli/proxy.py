"""A model behind somebody else's OpenAI-compatible URL, watched: requests pass through, what was said is kept.

Knows: HTTP, Chat Completions as far as a table needs it, limits.  Knows not: tokens; outside models send none.
Invariant: what agent and model send each other is unchanged, except that logprobs are asked for where there are any.
What the model cannot answer, because a limit is met or nobody is there, is an error in the protocol's own shape.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ludus.episodes.graph import SessionGraph
from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.errors import AgentError
from ludus.gateway.dialects.base import error_reply
from ludus.gateway.dialects.chat.dialect import CHAT
from ludus.http.server import HttpServer
from ludus.http.sse import DONE, whole_data
from ludus.types import Message, Sampled, Sampling, SessionRecord

_TIMEOUT_S = 600.0  # what OpenAI's SDK waits
_CHAT_PATH = "chat/completions"
_HOP_HEADERS = ("host", "content-length", "connection", "transfer-encoding", "accept-encoding", "content-encoding")


@dataclass(frozen=True, slots=True)
class ExternalReply:
    """What is known of one answer of an outside model."""

    id: str
    message: Message
    num_tokens: int | None
    """None: the model did not say."""
    mean_logprob: float | None
    """None: the model gave no logprobs."""


@dataclass(frozen=True, slots=True)
class ExternalSession:
    """One episode with an outside model: its turns without tokens, and the answers by turn id."""

    record: SessionRecord
    replies: Mapping[str, ExternalReply]
    refused: frozenset[str]
    """Codes of the limits that requests met."""


@dataclass(slots=True)
class _Session:
    graph: SessionGraph
    limits: Limits
    replies: dict[str, ExternalReply] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    num_calls: int = 0
    """Chat requests that were answered or still run."""


class RecordingProxy:
    """Serves sessions on a port of this machine and passes their requests on. Use as a context manager."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url = url.rstrip("/")
        self._api_key = api_key
        self._open: dict[str, _Session] = {}
        self._has_logprobs = True
        routes = [Route("/s/{secret}/v1/{rest:path}", self._pass_on, methods=["GET", "POST"])]
        self._server = HttpServer(Starlette(routes=routes), name="recording-proxy", beside=self._until_stopped)
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"RecordingProxy({self._url!r}, sessions={len(self._open)})"

    def __enter__(self) -> RecordingProxy:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def open(self, limits: Limits = NO_LIMITS) -> str:
        """The base URL of a new session. limits: max_tokens cannot act, since nobody tells how many were sampled."""
        secret = secrets.token_urlsafe(24)
        self._open[secret] = _Session(SessionGraph(secret), limits)
        return f"{self._server.base_url}/s/{secret}/v1"

    def close(self, base_url: str) -> ExternalSession:
        """What was said in the session; its URL is unknown from now on."""
        session = self._open.pop(base_url.split("/")[-2])
        return ExternalSession(session.graph.snapshot(), dict(session.replies), frozenset(session.refused))

    async def _until_stopped(self) -> None:
        async with self._client:
            await asyncio.Event().wait()

    async def _pass_on(self, request: Request) -> Response:
        session = self._open.get(request.path_params["secret"])
        if session is None:
            return JSONResponse({"error": {"message": "this episode has ended", "code": "session_closed"}}, 401)
        body = await request.body()
        is_call = request.method == "POST" and request.path_params["rest"] == _CHAT_PATH
        if is_call:
            try:
                session.limits.check(num_turns=session.num_calls, num_asked=1, num_tokens=0, now=time.monotonic())
            except AgentError as error:
                session.refused.add(error.code)
                told = error_reply(error)
                return JSONResponse(CHAT.error(told), told.status)
        session.num_calls += is_call
        try:
            answer = await self._send(request, body)
        except httpx.TransportError as error:
            session.num_calls -= is_call
            return self._unreachable(error)
        session.num_calls -= is_call and answer.status_code != httpx.codes.OK
        return await self._relay(session, body, answer, is_call and answer.status_code == httpx.codes.OK)

    async def _relay(self, session: _Session, body: bytes, answer: httpx.Response, is_chat: bool) -> Response:
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_HEADERS}
        kept: list[bytes] = []

        async def relay() -> AsyncIterator[bytes]:
            is_open = is_chat
            async for chunk in answer.aiter_bytes():
                kept.append(chunk)
                if is_open and b"[DONE]" in chunk:  # the agent may end the episode as soon as it has read this
                    is_open = _remember(session, body, b"".join(kept))
                yield chunk

        is_stream = str(answer.headers.get("content-type", "")).startswith("text/event-stream")
        if is_chat and not is_stream:
            content = await answer.aread()
            _remember(session, body, content)
            return Response(content, answer.status_code, headers)
        return StreamingResponse(relay(), answer.status_code, headers, background=BackgroundTask(answer.aclose))

    def _unreachable(self, error: httpx.TransportError) -> Response:
        message = f"the model at {self._url} cannot be reached: {type(error).__name__}: {error}"
        body = {"error": {"message": message, "type": "api_connection_error", "param": None, "code": "unreachable"}}
        return JSONResponse(body, httpx.codes.BAD_GATEWAY)

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
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_HEADERS}
        headers["authorization"] = f"Bearer {self._api_key}"
        url = f"{self._url}/{request.path_params['rest']}"
        outgoing = self._client.build_request(request.method, url, content=body, headers=headers)
        return await self._client.send(outgoing, stream=True)


def _with_logprobs(body: bytes) -> bytes | None:
    """The request with logprobs asked for. None: it asks already, or is no JSON object."""
    try:
        fields = json.loads(body)
    except ValueError:
        return None
    if not isinstance(fields, dict) or "logprobs" in fields:
        return None
    return json.dumps(fields | {"logprobs": True}).encode()


def _remember(session: _Session, body: bytes, answer: bytes) -> bool:
    """Add the first choice as a turn. False, always: nothing is left to remember; what is no chat is let pass."""
    asked = json.loads(body)
    if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list):
        return False
    reply = _read_stream(answer) if asked.get("stream") else _read_whole(json.loads(answer))
    messages = [_message(fields) for fields in asked["messages"]]
    match = session.graph.match(messages, "")
    session.replies[reply.id] = reply
    session.graph.add_turn(
        turn_id=reply.id,
        prompt_ids=(0,),  # an outside model tells no ids, and the graph wants a root to stand on
        prefix=None,
        follows=None if match.follows is None else match.follows.id,
        fork=None,
        messages=messages,
        reply=reply.message,
        sampled=Sampled((), (), (), "stop"),
        sampling=Sampling(),
    )
    return False


def _read_whole(body: Mapping[str, Any]) -> ExternalReply:
    choice = body["choices"][0]
    logprobs = (choice.get("logprobs") or {}).get("content") or []
    return ExternalReply(
        id=str(body["id"]),
        message=_message(choice["message"]),
        num_tokens=(body.get("usage") or {}).get("completion_tokens"),
        mean_logprob=_mean([token["logprob"] for token in logprobs]),
    )


def _read_stream(answer: bytes) -> ExternalReply:
    events = [json.loads(data) for data in whole_data(answer) if data != DONE]
    choices = [choice for event in events for choice in event.get("choices", ()) if choice.get("index", 0) == 0]
    text = "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)
    logprobs = [token["logprob"] for one in choices for token in (one.get("logprobs") or {}).get("content") or ()]
    counts = [event["usage"]["completion_tokens"] for event in events if event.get("usage")]
    return ExternalReply(
        id=str(events[0]["id"]),
        message=Message("assistant", text),
        num_tokens=counts[-1] if counts else len(logprobs) or None,
        mean_logprob=_mean(logprobs),
    )


def _message(fields: Mapping[str, Any]) -> Message:
    content = fields.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = "".join(
        f"{call['function']['name']}({call['function']['arguments']})" for call in fields.get("tool_calls") or ()
    )
    return Message(fields["role"], f"{content or ''}{calls}")


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
