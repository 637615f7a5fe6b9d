"""A server as a process: a real one, of the standard library."""

import asyncio
import contextlib
import sys

import pytest

from ludus.engines.process import ReplicaAddress, ServerCommand, run
from ludus.errors import BackendError
from ludus.processes.address import free_port

SERVER = """
import http.server, os, sys, time
class Probe(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == os.environ["WANTED"] else 404)
        self.end_headers()
        if self.path == "/end":
            os._exit(3)
        if self.path == "/hang":
            time.sleep(600)
    def log_message(self, *args): ...
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Probe).serve_forever()
"""


@pytest.fixture
def address():
    return ReplicaAddress("127.0.0.1", free_port("127.0.0.1"), "key", seed=0, index=0)


def serve(address, wanted="/health"):
    return ServerCommand((sys.executable, "-c", SERVER, str(address.port)), {"WANTED": wanted})


@contextlib.asynccontextmanager
async def asking(address, path):
    """What sends a server one request, from whichever thread; its connection ends before the block does."""
    loop, requests = asyncio.get_running_loop(), []

    async def request():
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        with contextlib.suppress(ConnectionError):  # the server is killed
            await reader.read()
        writer.close()

    try:
        yield lambda: requests.append(asyncio.run_coroutine_threadsafe(request(), loop))
    finally:
        await asyncio.gather(*map(asyncio.wrap_future, requests))


def test_a_server_runs_until_it_is_told_to_end(address):
    """It is ready when its probe is answered, and has ended when `run` returns."""
    ready = []

    async def main():
        enough = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_ready():
            ready.append(address.url)
            loop.call_soon_threadsafe(enough.set)

        return await run(serve(address), address, on_ready=on_ready, until=enough.wait())

    assert asyncio.run(main()) is None
    assert ready == [f"http://127.0.0.1:{address.port}"]
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(asyncio.open_connection("127.0.0.1", address.port))


def test_a_server_that_ends_is_noticed(address):
    """Its exit status is returned, whether it was ready before or not."""
    never = asyncio.Event
    broken = ServerCommand((sys.executable, "-c", "raise SystemExit(4)"))
    assert asyncio.run(run(broken, address, on_ready=lambda: None, until=never().wait())) == 4

    async def main():
        async with asking(address, "/end") as on_ready:
            return await run(serve(address), address, on_ready=on_ready, until=never().wait())

    assert asyncio.run(main()) == 3


def test_a_server_that_hangs_is_ended(address):
    """A server that was ready, lives and answers no more is told from one that serves, and has ended then."""

    async def main():
        async with asking(address, "/hang") as on_ready, asyncio.timeout(20):
            await run(serve(address), address, on_ready=on_ready, until=asyncio.Event().wait(), watch_s=0.05)

    with pytest.raises(BackendError, match=r"hangs: 6 probes of .*/health in a row"):
        asyncio.run(main())
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(asyncio.open_connection("127.0.0.1", address.port))


def test_urls_of_both_families():
    """An address of version 6 stands in brackets."""
    assert ReplicaAddress("::1", 80, "", 0, 0).url == "http://[::1]:80"
