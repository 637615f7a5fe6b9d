"""Clients that send without end, or slowly, or do not read: each is ended, and nobody else notices."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from ludus.http import connection
from ludus.http.server import HttpServer

MIB = 2**20


async def count(request: Request) -> Response:
    total = 0
    async for chunk in request.stream():
        total += len(chunk)
    return PlainTextResponse(str(total))


async def endless(_request: Request) -> Response:
    return StreamingResponse(b"x" * 65536 for _ in range(10_000))


APP = Starlette(routes=[Route("/", count, methods=["GET", "POST"]), Route("/endless", endless)])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    """In a hurry: what takes a minute elsewhere takes a fraction of a second."""
    hurry: dict[connection.Waiting | None, float] = {"connect": 0.3, "head": 0.3, "body": 0.3, "answer": 0.3}
    monkeypatch.setattr(connection, "_SECONDS", hurry)
    monkeypatch.setattr("ludus.http.server._DATE_EVERY_S", 0.05)
    with HttpServer(APP, name="server") as server:
        yield server


def connected(server: HttpServer) -> socket.socket:
    url = httpx.URL(server.base_url)
    return socket.create_connection((url.host, url.port or 0), timeout=10)


def answer_to(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    found = b""
    try:
        while part := client.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def is_well(server: HttpServer) -> bool:
    return httpx.post(server.base_url, content=b"x" * 3 * MIB).text == str(3 * MIB)


CHUNKED = b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
ENDLESS = {
    "headers": (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"x-%d: " + b"a" * 1000 + b"\r\n"),
    "one header": (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: ", b"a" * 1000),
    "the name of a header": (b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n", b"a" * 1000),
    "address": (b"GET /", b"a" * 1000),
    "method": (b"", b"A" * 1000),
    "chunk extension": (CHUNKED + b"1;a=", b"a" * 1000),
    "length of a chunk": (CHUNKED, b"0" * 1000),
    "trailers": (CHUNKED + b"0\r\n", b"x-t: " + b"a" * 1000 + b"\r\n"),
}
SLOW = {
    "nothing": (b"", b""),
    "head": (b"GET / HTTP/1.1\r\nhost: ", b"408"),
    "body": (b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10\r\n\r\n12", b"408"),
    "chunks": (CHUNKED + b"fffff\r\n1", b"408"),
    "second head": (b"POST / HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1\r\n\r\n1GET / HT", b"200"),
}


@pytest.mark.parametrize(("begin", "part"), ENDLESS.values(), ids=ENDLESS)
def test_what_has_no_end_is_ended(server: HttpServer, begin: bytes, part: bytes) -> None:
    """After a few hundred kilobytes, of 200 megabytes."""
    sent = 0
    with connected(server) as client:
        client.sendall(begin)
        try:
            while sent < 200 * MIB:
                client.sendall(part * 64)
                sent += 64 * len(part)
        except OSError:
            pass
    assert sent < 16 * MIB  # what the system's own buffers hold
    assert is_well(server)


@pytest.mark.parametrize(("sent", "status"), SLOW.values(), ids=SLOW)
def test_who_is_slow_is_ended(server: HttpServer, sent: bytes, status: bytes) -> None:
    """Also where a byte comes now and then."""
    with connected(server) as client:
        client.sendall(sent)
        client.settimeout(0.1)
        began_at, found = time.monotonic(), b""
        while time.monotonic() < began_at + 5:
            try:
                part = client.recv(65536)
                found += part
                if not part:
                    break
            except TimeoutError:
                if sent:
                    client.sendall(b"a")
            except ConnectionError:
                break
        assert time.monotonic() < began_at + 3
        assert found[9:12] == status
        if status == b"408":
            assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert is_well(server)


def test_who_does_not_read_is_ended(server: HttpServer) -> None:
    """An answer that nobody takes is not kept."""
    with connected(server) as client:
        client.sendall(b"GET /endless HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        time.sleep(1.0)
        assert len(answer_to(client)) < 10_000 * 65536
    assert is_well(server)


def test_small_chunks_are_no_head(server: HttpServer) -> None:
    """A body of a megabyte in chunks of eight bytes arrives."""
    parts = (b"12345678" for _ in range(MIB // 8))
    assert httpx.post(server.base_url, content=parts).text == str(MIB)
