"""Limits on one connection: bytes of a head, and time for a head, a body and the reading of an answer.

Knows: uvicorn's protocols, seconds.  Knows not: requests, applications.
These limits are needed because httptools buffers headers and trailers of any size, and uvicorn waits for any client,
however slow. Time that the application takes is not limited here.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import Any, Literal

from starlette.types import Scope

MOST_HEAD_BYTES = 128 * 2**10  # twice what the guard takes, which answers in words
_PER_BODY_BYTE = 16  # of what frames a chunk, so many bytes for each byte in it: the smallest chunk has six
# Of a client's machine that is busy, or far away, these are many times what is needed.
HEAD_S = 20.0
CONNECT_S = 60.0  # between a connection and its first byte: browsers and balancers connect ahead
BODY_S = 30.0
BODY_BYTES_PER_S = 1000  # a body may take a second longer for so many bytes
ANSWER_S = 60.0  # in which a client takes nothing of what is sent to it

Waiting = Literal["connect", "head", "body", "answer"]
_SECONDS: dict[Waiting | None, float] = {"connect": CONNECT_S, "head": HEAD_S, "body": BODY_S, "answer": ANSWER_S}


class Watched(asyncio.Protocol):
    """Closes the connection of a client that is too slow; `check` is called every second. A mixin for uvicorn's
    protocols."""

    transport: Any
    cycle: Any
    flow: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._is_new = True
        self._is_in_head = False
        self._num_bytes = 0
        """Bytes since the current wait for the client began."""
        self._waiting: Waiting | None = None
        self._since = 0.0

    def data_received(self, data: bytes) -> None:
        before, self._is_new = self.cycle, False
        self._num_bytes += len(data)
        super().data_received(data)
        if self.cycle is not before:
            self._is_in_head = False
        elif self.cycle is None or self.cycle.response_complete:
            self._is_in_head = True

    def check(self, now: float) -> None:
        """End the connection if its client has been waited for too long."""
        waiting = self._waited_for()
        if waiting != self._waiting:
            self._waiting, self._since, self._num_bytes = waiting, now, 0
        if waiting is None or self.transport.is_closing():
            return
        more_s = self._num_bytes / BODY_BYTES_PER_S if waiting == "body" else 0.0
        if now - self._since <= _SECONDS[waiting] + more_s:
            return
        if waiting == "answer":
            self.transport.abort()
        elif waiting == "connect":
            self.transport.close()
        else:
            self.refuse(408, f"The {waiting} of the request did not come in time.", "request_timeout")

    def is_of(self, scope: Scope) -> bool:
        """Whether it is the connection of this request."""
        return self.cycle is not None and self.cycle.scope is scope

    def cut_off(self) -> None:
        """Close the connection at once, answering with the reason if no answer has begun."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
        else:
            self.refuse(503, "The server is being stopped.", "server_stopping")

    def refuse(self, status: int, message: str, code: str) -> None:
        """Close the connection, answering with the reason if no answer has begun."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = json.dumps(error_body(message, code)).encode()
            head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def _waited_for(self) -> Waiting | None:
        """What the connection is waiting for the client to do. None: nothing."""
        if self.flow.write_paused:
            return "answer"
        if self._is_new:
            return "connect"
        if self._is_in_head:
            return "head"
        cycle = self.cycle
        is_reading = cycle is not None and cycle.more_body and not cycle.response_complete
        return "body" if is_reading and not self.flow.read_paused and not cycle.waiting_for_100_continue else None


class BoundedHead(Watched):
    """Also closes the connection of a client whose headers or trailers do not end. h11 has such a limit itself."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._num_head_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._num_head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.refuse(431, f"The request has more than {MOST_HEAD_BYTES} bytes of headers.", "headers_too_large")

    def on_headers_complete(self) -> None:
        self._num_head_bytes = 0
        super().on_headers_complete()  # type: ignore[misc]  # of httptools' callbacks

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = max(0, self._num_head_bytes - (1 + _PER_BODY_BYTE) * len(body))
        super().on_body(body)  # type: ignore[misc]


def error_body(message: str, code: str) -> dict[str, Any]:
    """An error body that is valid in both OpenAI's and Anthropic's protocols."""
    return {"type": "error", "error": {"message": message, "type": "invalid_request_error", "code": code}}


def connection_class() -> type[Watched]:
    """The connection class: with httptools if it is installed, else with h11."""
    try:
        found = importlib.import_module("uvicorn.protocols.http.httptools_impl")
    except ModuleNotFoundError:
        found = importlib.import_module("uvicorn.protocols.http.h11_impl")
        return type("Connection", (Watched, found.H11Protocol), {})
    return type("Connection", (BoundedHead, found.HttpToolsProtocol), {})
