"""The client side of a case: sends requests of one protocol to one address of the server under test.

Knows: clients, protocols, the session behind the address.  Knows not: what is expected of an answer.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import httpx

from ludus.checks.conformance.answers import Answer
from ludus.checks.conformance.clients import Clients
from ludus.checks.conformance.expect import ExpectationError, equal, parts, shown
from ludus.checks.conformance.local_server import LocalServer, LocalSession
from ludus.checks.conformance.replies import Reply
from ludus.checks.conformance.sse import Event, read_events
from ludus.checks.conformance.words import CHAT, Fields, Words
from ludus.errors import InternalError

KEY = "DUMMY"


@dataclass(frozen=True, slots=True)
class Target:
    """The server under test."""

    root: str
    """Base URL without `/v1`; empty for the local server, where every case has its session's URL."""
    api_key: str
    model: str
    max_tokens: int
    """Default limit for one answer."""
    server: LocalServer | None = None
    """None: another server."""


@dataclass
class Probe:
    """The client of one case; every case gets its own."""

    target: Target
    clients: Clients
    own: LocalSession | None = None
    """None: another server."""
    words: Words = CHAT
    root: str = ""
    """Base URL without `/v1`. Empty: the session's, or the target's."""
    key: str | None = ""
    """None: send no key. Empty: the target's."""
    max_retries: int = 0
    others: list[LocalSession] = field(default_factory=list)
    """Further sessions of the case."""

    def __post_init__(self) -> None:
        self.model = self.target.model
        self.root = self.root or (self.target.root if self.own is None else self.own.root)
        self.key = self.target.api_key if self.key == "" else self.key

    def but(self, **changes: Any) -> Probe:
        """A probe of the same session with another protocol, address or key."""
        return replace(self, **changes)

    def another(self, **options: Any) -> Probe:
        """A probe of a new session. options: as of `Recorder.open`. Only for cases marked as ours."""
        self.others.append(self.local.server.open(**options))
        return self.but(own=self.others[-1], root="", key="")

    @property
    def local(self) -> LocalSession:
        """The local session behind the address. Only for cases marked as ours."""
        if self.own is None:
            raise InternalError("the case looks behind the gateway and is not marked as ours")
        return self.own

    def script(self, *answers: Answer) -> None:
        """Set the local server's next answers; has no effect on other servers."""
        if self.own is not None:
            self.own.script(*answers)

    async def check(self, turns: int | None) -> None:
        """End the sessions of the case and check their records. Raises ExpectationError.

        turns: required number of turns of its own session. None: any number.
        """
        if turns is not None:
            equal("number of turns", len(self.local.turns), turns)
        for own in self._sessions():
            await own.check()

    def leave(self) -> None:
        """End the sessions of the case without checking them."""
        for own in self._sessions():
            own.leave()

    def _sessions(self) -> list[LocalSession]:
        return [*self.others, *([] if self.own is None else [self.own])]

    # ---- requests with an SDK; `answers` are scripted for the local server's model

    @cached_property
    def openai(self) -> Any:
        return self.clients.openai(self.root, self.key, self.max_retries)

    @cached_property
    def anthropic(self) -> Any:
        return self.clients.anthropic(self.root, self.key, self.max_retries)

    @property
    def sdk(self) -> Any:
        """The SDK's resource that creates answers of the protocol."""
        return self.words.resource(self)

    def fields(self, **fields: Any) -> dict[str, Any]:
        """A request: the protocol's default fields, overridden by `fields`."""
        room = {} if "max_completion_tokens" in fields else {self.words.limit: self.target.max_tokens}
        return {"model": self.model, **self.words.question, "temperature": 0, **room, **fields}

    def arguments(self, **fields: Any) -> dict[str, Any]:
        """The same for the SDK, which accepts older fields only in `extra_body`."""
        whole = self.fields(**fields)
        older = {name: whole.pop(name) for name in self.words.older if name in whole}
        return {**whole, "extra_body": {**older, **whole.get("extra_body", {})}}

    async def answer(self, *answers: Answer, **fields: Any) -> Any:
        """The SDK's object for an answer that is not streamed."""
        self.script(*answers)
        return await self.sdk.create(**self.arguments(**fields))

    async def events(self, *answers: Answer, **fields: Any) -> list[Any]:
        """The SDK's objects for a streamed answer."""
        return [event async for event in await self.answer(*answers, **fields, stream=True)]

    async def ask(self, *answers: Answer, **fields: Any) -> Reply:
        return self.words.whole(await self.answer(*answers, **fields))

    async def stream(self, *answers: Answer, **fields: Any) -> Reply:
        return self.words.streamed(await self.events(*answers, **fields))

    async def both(self, *answers: Answer, **fields: Any) -> Reply:
        """The reply without streaming. Raises ExpectationError if the streamed reply differs."""
        whole = await self.ask(*answers, **fields)
        equal("the streamed reply", await self.stream(*answers, **fields), whole)
        return whole

    async def refused(
        self, asked: Awaitable[Any], status: int = 400, *, kind: str = "", retry: str = "", **error: object
    ) -> Any:
        """The body of the error response to `asked`. Raises ExpectationError if it differs, or there is no error.

        kind: name of the SDK's exception. retry: required value of x-should-retry; '': any. error: required fields.
        """
        try:
            answer = await asked
        except self.clients.status_errors as raised:
            refusal: Any = raised
        else:
            raise ExpectationError("the request", f"an error with status {status}", answer)
        equal(f"status of {shown(refusal.body)}", refusal.status_code, status)
        inner = refusal.body.get("error", refusal.body) if isinstance(refusal.body, dict) else {}
        parts(inner if isinstance(inner, dict) else {}, **error)
        equal("exception", type(refusal).__name__, kind or type(refusal).__name__)
        if retry:
            equal("x-should-retry", refusal.response.headers.get("x-should-retry"), retry)
        return refusal.body

    # ---- requests without an SDK

    async def send(
        self, method: str, path: str, body: Any = None, *, content: Any = None, headers: Fields | None = None
    ) -> httpx.Response:
        """The answer to any request. content: bytes instead of a JSON body."""
        data = content if body is None else json.dumps(body).encode()
        return await self.clients.raw.request(method, self.root + path, content=data, headers=self._headers(headers))

    async def post(self, *, content: Any = None, headers: Fields | None = None, **fields: Any) -> httpx.Response:
        """The answer to a request of the protocol. content: bytes instead of its fields."""
        body = self.fields(**fields) if content is None else None
        return await self.send("POST", f"/v1{self.words.path}", body, content=content, headers=headers)

    @asynccontextmanager
    async def lines(self, *answers: Answer, **fields: Any) -> AsyncIterator[AsyncIterator[str]]:
        """The non-blank lines of a streamed answer as they arrive; leaving the block early closes the connection."""
        self.script(*answers)
        url, body = f"{self.root}/v1{self.words.path}", self.fields(**fields, stream=True)
        async with self.clients.raw.stream("POST", url, json=body, headers=self._headers(None)) as answer:
            equal("status of the stream", answer.status_code, 200)
            yield (line async for line in answer.aiter_lines() if line)

    def _headers(self, others: Fields | None) -> dict[str, str]:
        key = {} if self.key is None else {"authorization": f"Bearer {self.key}"}
        return {"content-type": "application/json", **key, **(others or {})}


def events_of(answer: httpx.Response) -> list[Event]:
    """The events of a streamed answer. Raises ExpectationError if it is not one."""
    equal(f"status of {shown(answer.text)}", answer.status_code, 200)
    return read_events(answer.text)
