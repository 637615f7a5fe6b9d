"""The soak of the gateway, with few sessions and the tests' tokenizer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from ludus.checks.bench import soak_client
from ludus.checks.bench.soak import SoakWork, list_of_descriptors, measure_soak
from ludus.errors import UserError


def test_every_session_is_recorded_and_nothing_is_held(tokenizer_folder: Path) -> None:
    """Sessions, streams and clients that leave are counted; no thread is left of any of them."""
    found = measure_soak(SoakWork(str(tokenizer_folder), sessions=20, seconds=1.5, streams=8, seed=1))
    assert found["sessions"] == 20 and found["streams"] == 8 and found["left"] > 0
    assert found["requests"] >= 20 * 4 and found["p99_s"] >= found["p50_s"] > 0
    begin, end, most = found["threads"]
    assert end <= most < begin + 8  # of pools, whatever the number of sessions


def test_descriptors_are_counted_where_the_system_lists_them(tmp_path: Path) -> None:
    """On macOS in /dev/fd; where there is no list it is told."""
    here = Path("/dev/fd")
    assert list_of_descriptors((tmp_path / "proc", here)) == here
    with pytest.raises(UserError, match=r"nothing here lists open descriptors: neither .*/proc nor .*/fd is there"):
        list_of_descriptors((tmp_path / "proc", tmp_path / "fd"))


def test_clients_that_leave_whatever_they_may_are_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer of each session is heard: a reward for none is refused, and the session would not end."""
    monkeypatch.setattr(soak_client, "_LEFT_SHARE", 1.0)
    heard = dict[str, bool]()

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/sessions":
            return httpx.Response(200, json={"base_url": "http://h/s", "key": "k"})
        if path.endswith("/completions") and b'"stream":true' not in request.content:
            return httpx.Response(200, json={"choices": [{"message": {"content": "x"}}]})
        piece = 'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
        return httpx.Response(200, text=piece) if path.endswith("/completions") else httpx.Response(200, json={})

    async def play() -> None:
        async with httpx.AsyncClient(base_url="http://h", transport=httpx.MockTransport(answer)) as http:
            clients = soak_client.Clients({"seed": 0, "admin_key": "a"}, http)
            for number in range(50):
                left, requests = clients.num_left, len(clients.latencies_s)
                await clients.session(number)
                heard[str(number)] = clients.num_left - left < 3 and len(clients.latencies_s) - requests > 3

    asyncio.run(play())
    assert len(heard) == 50 and all(heard.values())


def test_a_session_that_fails_is_told() -> None:
    """And ends the soak, whose record would lack it."""
    job = {"url": "http://127.0.0.1:9", "seed": 0, "sessions": 3, "seconds": 0.01, "streams": 1, "admin_key": "a"}
    with pytest.raises(ExceptionGroup, match="unhandled errors") as told:
        asyncio.run(soak_client.run(job))
    assert told.group_contains(httpx.ConnectError)
