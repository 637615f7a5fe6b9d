"""Clients that the episodes of one event loop share."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace

import pytest

from ludus.agents.http_clients import SharedClients
from ludus.errors import UserError


def test_a_client_is_made_once_and_again_if_an_agent_closed_it() -> None:
    """`async with` around a shared client costs its siblings nothing."""

    async def use() -> None:
        clients = SharedClients()
        first = await clients.httpx_client()
        assert await clients.httpx_client() is first
        await first.aclose()
        second = await clients.httpx_client()
        assert second is not first and not second.is_closed
        await clients.aclose()
        assert second.is_closed

    asyncio.run(use())


def test_aiohttp_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed there is a session, closed with the others; elsewhere the error says what to do."""

    class Session:
        closed = False

        def __init__(self, timeout: float) -> None:
            self.timeout = timeout

        async def close(self) -> None:
            self.closed = True

    async def use() -> Session:
        clients = SharedClients()
        session: Session = await clients.aiohttp_session()
        assert await clients.aiohttp_session() is session
        await clients.aclose()
        return session

    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(UserError, match="pip install aiohttp; or use get_httpx_client"):
        asyncio.run(use())
    installed = SimpleNamespace(ClientSession=Session, ClientTimeout=lambda total: total)
    monkeypatch.setitem(sys.modules, "aiohttp", installed)
    assert asyncio.run(use()).closed
