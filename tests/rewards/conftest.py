"""A small HTTP server that answers as it was told, for clients that must survive it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Answer = tuple[int, Any]
"""Status, and the body: text, or what becomes JSON."""


@dataclass
class Endpoint:
    """An endpoint of OpenAI's protocol; `answers` are given one after the other, the last for ever."""

    base_url: str = ""
    answers: list[Answer | Callable[[dict[str, Any]], Answer]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def answer(self, body: dict[str, Any]) -> Answer:
        self.bodies.append(body)
        answer = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        return answer(body) if callable(answer) else answer


def completion(text: str | None, *, finish_reason: str = "stop", usage: dict[str, Any] | None = None) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    counts = {"prompt_tokens": 100, "completion_tokens": 10} if usage is None else usage
    return 200, {"id": "c-1", "object": "chat.completion", "choices": [choice], "usage": counts}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    told = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            told.paths.append(self.path)
            told.keys.append(self.headers["Authorization"])
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = told.answer(body)
            data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):  # the client has given up
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    told.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield told
    server.shutdown()
    server.server_close()
    thread.join()
