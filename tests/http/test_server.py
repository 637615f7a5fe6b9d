"""A server over TLS, and what may listen where other machines are."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from ludus.errors import UserError
from ludus.http import server as server_module
from ludus.http.server import STOP_GRACE_S, HttpServer
from ludus.http.tls import client_context
from tests.http.conftest import Authority

APP = Starlette(routes=[Route("/", lambda request: PlainTextResponse("here"))])


def test_a_client_with_the_authority_is_served(authority: Authority) -> None:
    """Over TLS 1.2 or newer, at an https:// URL; one that does not trust the authority says nothing to the server."""
    with HttpServer(APP, name="server", tls=authority.tls) as server:
        assert server.base_url.startswith("https://127.0.0.1:")
        assert httpx.get(server.base_url, verify=client_context(authority.ca_file)).text == "here"
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(server.base_url, verify=client_context(None))
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(server.base_url.replace("https", "http"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_what_wants_no_key_is_served_to_this_machine_alone(host: str) -> None:
    """Whatever else would let other machines in; nothing listens, and the server may be started elsewhere."""
    server = HttpServer(APP, name="server")
    with pytest.raises(UserError, match=r"wants no key, and on .* other machines could use it; .* 127\.0\.0\.1"):
        server.start(host)
    server.start("localhost")
    server.stop()


def test_what_wants_a_key_may_be_served_to_others() -> None:
    """On every address of this machine, where somebody asked for it."""
    server = HttpServer(APP, name="server", is_guarded=True)
    url = server.start("0.0.0.0")
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0)):
        server.stop()


class Slow:
    """An application whose answers take long. `has_begun` is set once a request is in it."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.was_cancelled = False
        routes = [Route("/long", self.long), Route("/endless", self.endless), Route("/silent", self.silent)]
        self.app = Starlette(routes=routes)

    async def long(self, request: Request) -> PlainTextResponse:
        """A body larger than what the systems between take at once, after a while."""
        self.has_begun.set()
        await asyncio.sleep(0.1)
        return PlainTextResponse("x" * 20_000_000)

    async def endless(self, request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[str]:
            while True:
                yield "x"
                self.has_begun.set()
                await asyncio.sleep(0.01)

        return StreamingResponse(body())

    async def silent(self, request: Request) -> PlainTextResponse:
        self.has_begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return PlainTextResponse("late")


def ask(server: HttpServer, path: str, answers: list[str]) -> threading.Thread:
    """Asks in a thread; what came, or the name of the error, is appended to `answers`."""
    url = server.base_url + path

    def get() -> None:
        try:
            answers.append(httpx.get(url, timeout=60).text)
        except httpx.HTTPError as error:
            answers.append(type(error).__name__)

    thread = threading.Thread(target=get)
    thread.start()
    return thread


def test_a_stop_waits_for_answers_alone() -> None:
    """A server with nothing but idle connections has ended long before its grace has; another one can start then."""
    server = HttpServer(APP, name="server")
    for _ in range(3):
        url = server.start()
        with httpx.Client() as http:
            http.get(url)
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < STOP_GRACE_S


def test_an_answer_in_flight_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, though the server was stopped before it began."""
    monkeypatch.setattr(server_module, "STOP_GRACE_S", 60)
    slow, answers = Slow(), list[str]()
    with HttpServer(slow.app, name="server") as server:
        asking = ask(server, "/long", answers)
        slow.has_begun.wait()
    asking.join()
    assert [len(answer) for answer in answers] == [20_000_000]


@pytest.mark.parametrize("path", ["/endless", "/silent"])
def test_what_does_not_end_is_cut_off(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """After the grace: a stream without an end, and an answer that does not come. The stop is no fault of the
    application, and nothing is logged as one."""
    slow, answers = Slow(), list[str]()
    with HttpServer(slow.app, name="server") as server:
        asking = ask(server, path, answers)
        slow.has_begun.wait()
    asking.join()
    if path == "/silent":
        assert "The server is being stopped" in answers[0] and slow.was_cancelled
    else:
        assert answers[0] in {"RemoteProtocolError", "ReadError"}
    assert caplog.text == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_whose_companion_failed_can_be_stopped() -> None:
    """Its loop has ended by then."""
    may_fail = threading.Event()

    async def fail() -> None:
        while not may_fail.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        raise ValueError("on purpose")

    server = HttpServer(APP, name="server", beside=fail)
    server.start()
    assert httpx.get(server.base_url).text == "here"
    may_fail.set()
    with pytest.raises(httpx.ConnectError):
        while True:
            httpx.get(server.base_url)
    server.stop()


CROWD = """
import resource, socket, sys
from tests.http.test_server import APP
from ludus.http.server import HttpServer
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
with HttpServer(APP, name="server") as server:
    at = ("127.0.0.1", int(server.base_url.rpartition(":")[2]))
    crowd = [socket.create_connection(at) for _ in range(100)]
    for each in crowd:
        each.sendall(b"GET / HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
    sys.stdout.write(str(sum(each.recv(15) == b"HTTP/1.1 200 OK" for each in crowd)))
    for each in crowd:
        each.close()
"""


def test_more_connections_than_a_shell_allows_files_are_served() -> None:
    """macOS begins with 256, of which a few dozen agents take two each; the limit is raised as far as it may be."""
    done = subprocess.run([sys.executable, "-c", CROWD], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "100", done.stderr


def test_a_limit_that_the_system_does_not_allow_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS says that there is none, and takes no more than 10,240; a limit that is high enough stays."""
    limits = [(256, resource.RLIM_INFINITY)]

    def refuse(kind: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits[0] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[0])
    monkeypatch.setattr(resource, "setrlimit", refuse)
    server_module.allow_descriptors()
    assert limits[0] == (10_240, resource.RLIM_INFINITY)
    limits[0] = (100_000, 200_000)
    server_module.allow_descriptors()
    assert limits[0] == (100_000, 200_000)
