"""What a case talks through: one address of the server under test, in the format of each protocol.

Knows: clients, the fields that every request of a protocol has.  Knows not: what is expected of an answer.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from ludus.checks.conformance.clients import Clients
from ludus.checks.conformance.expect import ExpectationError, equal, shown
from ludus.checks.conformance.local_server import LocalServer, LocalSession
from ludus.checks.conformance.sse import Event, read_events
from ludus.errors import InternalError

ASK: list[dict[str, Any]] = [{"role": "user", "content": "Name some colours, separated by blanks."}]
Fields = Mapping[str, Any]
KEY = "DUMMY"


@dataclass(frozen=True, slots=True)
class Target:
    """The server under test."""

    root: str
    """Base URL without `/v1`; empty for the local server, where every case has a session's."""
    api_key: str
    model: str
    max_tokens: int
    """Room for one answer where a case names none."""
    server: LocalServer | None = None
    """None: another server."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed answer as it came over HTTP."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def events(self) -> list[Event]:
        """Raises ExpectationError if the answer is no stream."""
        if self.status != 200:
            raise ExpectationError("the stream", "status 200", f"{self.status}: {self.text}")
        return read_events(self.text)


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer that is an error, as the SDK understood it."""

    kind: str
    """Name of the exception's class."""
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def error(self) -> Fields:
        """The part that both protocols call `error`."""
        inner = self.body.get("error", self.body) if isinstance(self.body, dict) else {}
        return inner if isinstance(inner, dict) else {}


class Probe:
    """One case's way to the server. Every case gets its own."""

    def __init__(self, target: Target, clients: Clients, own: LocalSession | None = None) -> None:
        self.model = target.model
        self._target = target
        self._clients = clients
        self._own = own
        self._others: list[LocalSession] = []
        self.root = target.root if own is None else own.root
        self.openai = clients.openai(self.root, target.api_key)
        self.anthropic = clients.anthropic(self.root, target.api_key)

    def __repr__(self) -> str:
        return f"Probe({self.model!r}, own={self._own!r})"

    @property
    def is_remote(self) -> bool:
        """The server is not the local one."""
        return self._own is None

    @property
    def local(self) -> LocalSession:
        """Our session behind the address; only for cases that other servers are not asked."""
        if self._own is None:
            raise InternalError("the case looks behind the gateway and is not marked as ours")
        return self._own

    def script(self, *answers: str) -> None:
        """On the local server the next answers are these; another server says what its model says."""
        if self._own is not None:
            self._own.script(*answers)

    def another(self, **options: Any) -> Probe:
        """A probe of a session of its own; options as of `Recorder.open`. Only for cases that are ours."""
        if self._target.server is None:
            raise InternalError("the case opens sessions and is not marked as ours")
        own = self._target.server.open(**options)
        self._others.append(own)
        return Probe(self._target, self._clients, own)

    def retrying(self, max_retries: int) -> tuple[Any, Any]:
        """Clients of OpenAI and Anthropic that send a failed request again."""
        key = self._target.api_key
        return (
            self._clients.openai(self.root, key, max_retries=max_retries),
            self._clients.anthropic(self.root, key, max_retries=max_retries),
        )

    def with_key(self, api_key: str, *, root: str | None = None) -> tuple[Any, Any]:
        """Clients of OpenAI and Anthropic with another key, at another address if one is named."""
        root = self.root if root is None else root
        return self._clients.openai(root, api_key), self._clients.anthropic(root, api_key)

    async def check(self) -> None:
        """Ends the sessions of the case and checks their records. Raises ExpectationError."""
        for own in self._sessions():
            await own.check()

    def leave(self) -> None:
        """Ends the sessions of the case as they stand."""
        for own in self._sessions():
            own.leave()

    def _sessions(self) -> list[LocalSession]:
        return [*self._others, *([] if self._own is None else [self._own])]

    # ---- requests with an SDK: fields on top of those that every request has

    def chat_fields(self, **fields: Any) -> dict[str, Any]:
        room = {} if "max_completion_tokens" in fields else {"max_tokens": self._target.max_tokens}
        return {"model": self.model, "messages": ASK, "temperature": 0, **room, **fields}

    async def chat(self, **fields: Any) -> Any:
        """The ChatCompletion."""
        return await self.openai.chat.completions.create(**self.chat_fields(**fields))

    async def chat_chunks(self, **fields: Any) -> list[Any]:
        """The chunks of the streamed completion."""
        stream = await self.openai.chat.completions.create(**self.chat_fields(**fields), stream=True)
        return [chunk async for chunk in stream]

    def response_fields(self, **fields: Any) -> dict[str, Any]:
        room = {"max_output_tokens": self._target.max_tokens}
        return {"model": self.model, "input": ASK[0]["content"], "temperature": 0, **room, **fields}

    async def respond(self, **fields: Any) -> Any:
        """The Response."""
        return await self.openai.responses.create(**self.response_fields(**fields))

    async def response_events(self, **fields: Any) -> list[Any]:
        """The events of the streamed response."""
        stream = await self.openai.responses.create(**self.response_fields(**fields), stream=True)
        return [event async for event in stream]

    def message_fields(self, **fields: Any) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": ASK,
            "temperature": 0,
            "max_tokens": self._target.max_tokens,
            **fields,
        }

    def message_arguments(self, **fields: Any) -> dict[str, Any]:
        """The same for the SDK, which leaves the protocol's older fields to `extra_body`."""
        whole = self.message_fields(**fields)
        older = {name: whole.pop(name) for name in ("temperature", "top_p", "top_k") if name in whole}
        return {**whole, "extra_body": {**older, **whole.get("extra_body", {})}}

    async def message(self, **fields: Any) -> Any:
        """Anthropic's Message."""
        return await self.anthropic.messages.create(**self.message_arguments(**fields))

    async def message_events(self, **fields: Any) -> list[Any]:
        """The events of the streamed message."""
        stream = await self.anthropic.messages.create(**self.message_arguments(**fields), stream=True)
        return [event async for event in stream]

    def completion_fields(self, **fields: Any) -> dict[str, Any]:
        room = {"max_tokens": self._target.max_tokens}
        return {"model": self.model, "prompt": "Colours: red, green,", "temperature": 0, **room, **fields}

    async def complete(self, **fields: Any) -> Any:
        """The Completion."""
        return await self.openai.completions.create(**self.completion_fields(**fields))

    async def completion_chunks(self, **fields: Any) -> list[Any]:
        """The chunks of the streamed completion."""
        stream = await self.openai.completions.create(**self.completion_fields(**fields), stream=True)
        return [chunk async for chunk in stream]

    async def refused(self, asked: Awaitable[Any], *, status: int = 400, param: str | None = None) -> Refused:
        """The error that `asked` is answered with. Raises ExpectationError if it is another one, or none.

        param: the field that the error must name. None: any.
        """
        try:
            answer = await asked
        except self._clients.status_errors as raised:
            error: Any = raised
        else:
            raise ExpectationError("the request", f"an error with status {status}", answer)
        told = Refused(type(error).__name__, error.status_code, error.body, dict(error.response.headers))
        equal(f"status of {shown(told.body)}", told.status, status)
        if param is not None:
            equal("the field that the error names", told.error.get("param"), param)
        return told

    # ---- requests without an SDK

    async def post(
        self, path: str, body: Any = None, *, content: Any = None, headers: Fields | None = None, key: str | None = KEY
    ) -> httpx.Response:
        """The answer to a POST below `/v1`. `content`: bytes instead of JSON. key: None sends none."""
        sent = {"content-type": "application/json", **self._authorization(key), **(headers or {})}
        data = json.dumps(body).encode() if content is None else content
        return await self._clients.raw.post(f"{self.root}/v1{path}", content=data, headers=sent)

    async def get(self, path: str, *, key: str | None = KEY) -> httpx.Response:
        return await self._clients.raw.get(f"{self.root}/v1{path}", headers=self._authorization(key))

    async def request(
        self, method: str, url: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """The answer to any request to any URL; nothing is added to the headers. body: None sends none."""
        return await self._clients.raw.request(method, url, json=body, headers=headers)

    async def streamed(self, path: str, body: Fields, *, headers: Fields | None = None) -> Streamed:
        """The whole answer to a POST that asks for a stream."""
        answer = await self.post(path, {**body, "stream": True}, headers=headers)
        return Streamed(answer.status_code, answer.headers, answer.text)

    @asynccontextmanager
    async def open_stream(self, path: str, body: Fields) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of a streamed answer as they come; leaving the block early closes the connection."""
        url, sent = f"{self.root}/v1{path}", {**body, "stream": True}
        async with self._clients.raw.stream("POST", url, json=sent, headers=self._authorization(KEY)) as answer:
            equal("status of the stream", answer.status_code, 200)
            yield answer.aiter_lines()

    def _authorization(self, key: str | None) -> dict[str, str]:
        key = self._target.api_key if key == KEY else key
        return {} if key is None else {"authorization": f"Bearer {key}"}
