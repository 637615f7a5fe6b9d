"""Clients whose requests reach the gateway without a socket: as the socket does, chunk by chunk."""

from __future__ import annotations

import asyncio
import importlib
import threading
from typing import Any

import openai
import pytest

from ludus.episodes.names import ModelNames
from ludus.gateway.transport import NUM_CHUNKS, InProcessTransport, sdk_http_module
from tests.gateway.clients import async_client

ASK: Any = [{"role": "user", "content": "Guess."}]
FOX = "The quick brown fox jumps over the lazy dog."
BOTH = pytest.mark.parametrize("kind", ["httpx", "httpx2"])


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "default", "messages": ASK, **fields}


@BOTH
def test_both_modules_get_the_answer(open_sessions: Any, kind: Any) -> None:
    """A plain client of either module gets the whole answer, and errors with their status."""
    session_manager = open_sessions([FOX])
    url, _ = session_manager.open()

    async def main() -> None:
        async with async_client(session_manager.server, kind) as http:
            response = await http.post(f"{url}/chat/completions", json=body())
            assert response.json()["choices"][0]["message"]["content"] == FOX
            assert (await http.post(f"{url}/nothing", json={})).status_code == 404
            assert (await http.get(f"{session_manager.server.base_url}/healthz")).json() == {"status": "ok"}

    asyncio.run(main())


def test_sdk_takes_the_automatic_client(open_sessions: Any) -> None:
    """The installed SDK accepts the client of the module that its package requires, streamed and unstreamed."""
    session_manager = open_sessions([FOX, FOX])
    url, session = session_manager.open()

    async def main() -> tuple[str | None, str]:
        http = async_client(session_manager.server)
        assert type(http).__module__.partition(".")[0] == sdk_http_module()
        async with openai.AsyncOpenAI(base_url=url, api_key="DUMMY", http_client=http) as sdk:
            whole = await sdk.chat.completions.create(**body())
            stream = await sdk.chat.completions.create(**body(stream=True))
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return whole.choices[0].message.content, "".join(parts)

    assert asyncio.run(main()) == (FOX, FOX)
    assert len(session.snapshot().turns) == 2


@BOTH
def test_first_chunk_arrives_while_the_engine_still_samples(open_sessions: Any, kind: Any) -> None:
    """The transport passes on each chunk as the application sends it."""
    session_manager = open_sessions([FOX], num_free=3)
    url, session = session_manager.open()

    async def main() -> None:
        async with (
            async_client(session_manager.server, kind) as http,
            http.stream("POST", f"{url}/chat/completions", json=body(stream=True)) as response,
        ):
            lines = response.aiter_lines()
            first = await anext(lines)
            assert '"role":"assistant"' in first
            assert session.snapshot().turns == ()
            session_manager.engine.open_gate()
            assert [line async for line in lines if line][-1] == "data: [DONE]"

    asyncio.run(main())


@BOTH
def test_leaving_early_cancels_the_call(open_sessions: Any, kind: Any) -> None:
    """Closing the response ends the engine's call, and its tokens are recorded."""
    session_manager = open_sessions([FOX], num_free=3)
    url, session = session_manager.open()

    async def main() -> None:
        async with async_client(session_manager.server, kind) as http:
            async with http.stream("POST", f"{url}/chat/completions", json=body(stream=True)) as response:
                await anext(response.aiter_lines())
            await asyncio.to_thread(session_manager.engine.was_aborted.wait)

    asyncio.run(main())
    assert asyncio.run(session.aclose("over")).turns[0].sampled.stop_reason == "abort"


def test_cancelling_the_waiting_task_cancels_the_call(open_sessions: Any) -> None:
    """A task that is cancelled while it waits for the answer ends the engine's call."""
    session_manager = open_sessions([FOX], num_free=0)
    url, _ = session_manager.open()

    async def main() -> None:
        async with async_client(session_manager.server) as http:
            waiting = asyncio.ensure_future(http.post(f"{url}/chat/completions", json=body()))
            await asyncio.to_thread(session_manager.engine.is_waiting.wait)
            waiting.cancel()
            await asyncio.wait([waiting])
            await asyncio.to_thread(session_manager.engine.was_aborted.wait)

    asyncio.run(main())


@BOTH
def test_read_timeout_is_the_modules_own(open_sessions: Any, kind: Any) -> None:
    """A client that waits longer than its timeout gets its module's ReadTimeout, and the call ends."""
    session_manager = open_sessions([FOX], num_free=0)
    url, _ = session_manager.open()

    async def main() -> None:
        async with async_client(session_manager.server, kind) as http:
            with pytest.raises(importlib.import_module(kind).ReadTimeout):
                # long enough that the call has begun, or there would be none to end
                await http.post(f"{url}/chat/completions", json=body(), timeout=0.2)
            assert await asyncio.to_thread(session_manager.engine.was_aborted.wait, 10)

    asyncio.run(main())


def test_one_client_serves_several_loops(open_sessions: Any) -> None:
    """One transport answers requests from loops in different threads."""
    session_manager = open_sessions(lambda call: FOX)
    url, session = session_manager.open()
    http = async_client(session_manager.server)
    texts: list[str] = []

    def ask() -> None:
        async def main() -> None:
            response = await http.post(f"{url}/chat/completions", json=body())
            texts.append(response.json()["choices"][0]["message"]["content"])

        asyncio.run(main())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [FOX] * 4
    assert len(session.snapshot().turns) == 4


class Chatterbox:
    """An application that sends chunks without end and counts them; says when it has to wait and when it was ended."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.is_full = threading.Event()
        self.was_cancelled = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                if self.num_sent == NUM_CHUNKS - 1:
                    self.is_full.set()
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                self.num_sent += 1
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise


def test_slow_client_holds_the_application_back(open_sessions: Any) -> None:
    """The application may be a fixed number of chunks ahead; each chunk taken lets one more through."""
    session_manager = open_sessions([], own=True)
    chatterbox = Chatterbox()
    session_manager.server.app = chatterbox

    async def main() -> None:
        async with async_client(session_manager.server, "httpx") as http:
            async with http.stream("GET", f"{session_manager.server.base_url}/") as response:
                await asyncio.to_thread(chatterbox.is_full.wait)
                assert chatterbox.num_sent <= NUM_CHUNKS
                chunks = response.aiter_raw()
                for _ in range(3 * NUM_CHUNKS):
                    assert await anext(chunks) == b"x"
                assert chatterbox.num_sent <= 4 * NUM_CHUNKS
            await asyncio.to_thread(chatterbox.was_cancelled.wait)

    asyncio.run(main())


def test_application_that_breaks_is_a_read_error(open_sessions: Any) -> None:
    """An exception in the application reaches the client as its module's error, with the reason."""
    session_manager = open_sessions([], own=True)

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("seven")

    session_manager.server.app = broken

    async def main() -> None:
        import httpx

        async with async_client(session_manager.server, "httpx") as http:
            with pytest.raises(httpx.ReadError, match="KeyError: 'seven'"):
                await http.get(f"{session_manager.server.base_url}/")

    asyncio.run(main())


def test_stopped_gateway_is_a_connect_error(open_sessions: Any) -> None:
    """A request after the gateway has stopped fails at once with the module's ConnectError."""
    session_manager = open_sessions([], own=True)
    url, _ = session_manager.open()

    async def main() -> None:
        import httpx

        async with async_client(session_manager.server, "httpx") as http:
            session_manager.server.stop()
            with pytest.raises(httpx.ConnectError, match="stopped"):
                await http.get(f"{url}/models")

    asyncio.run(main())


def test_gateway_that_stops_ends_the_answer(open_sessions: Any) -> None:
    """A stream that is open when the gateway stops ends with an error, not with silence."""
    session_manager = open_sessions([FOX], num_free=3, own=True)
    url, _ = session_manager.open()

    async def main() -> None:
        import httpx

        async with (
            async_client(session_manager.server, "httpx") as http,
            http.stream("POST", f"{url}/chat/completions", json=body(stream=True)) as response,
        ):
            lines = response.aiter_lines()
            await anext(lines)
            await asyncio.to_thread(session_manager.server.stop)
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in lines:
                    pass

    asyncio.run(main())


def test_other_hosts_are_reached_through_the_network(open_sessions: Any) -> None:
    """The same client asks another server over its socket, as an agent's tools may."""
    session_manager, other = open_sessions([]), open_sessions([], names=ModelNames("elsewhere"))
    other_url, _ = other.open()

    async def main() -> list[str]:
        async with async_client(session_manager.server) as http:
            return [model["id"] for model in (await http.get(f"{other_url}/models")).json()["data"]]

    assert asyncio.run(main()) == ["elsewhere", "default"]
    assert "httpx" in repr(InProcessTransport(session_manager.server, importlib.import_module("httpx")))
