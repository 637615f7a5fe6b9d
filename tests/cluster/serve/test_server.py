"""A server put together: its key from one start to the next, its address, its folder."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest

from ludus.cluster.address import ListenAddress
from ludus.cluster.serve.server import Running, running
from ludus.cluster.serve.store import JobStore
from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.workshop import BackendJobRunner
from ludus.errors import UserError


def serve(folder: Path, key: str | None, *tried: str) -> tuple[Running, list[int]]:
    """A server started and stopped; the status that each of the keys was answered with."""

    async def main() -> tuple[Running, list[int]]:
        with JobStore(folder) as store:
            backend = LocalBackend(path=folder / "models")
            async with running(store, backend, BackendJobRunner(backend), ListenAddress("127.0.0.1", 0, key)) as server:
                keys = (*tried, *([server.new_key] if server.new_key else []))
                headers = [{"authorization": f"Bearer {each}"} for each in keys]
                async with httpx.AsyncClient(base_url=server.url) as http:
                    return server, [(await http.get("/api/v1/models", headers=each)).status_code for each in headers]

    return asyncio.run(main())


def test_a_made_key_is_shown_once_and_stays(tmp_path: Path) -> None:
    """The folder keeps its digest: the next start takes it and shows none; a key of one's own replaces it."""
    first, statuses = serve(tmp_path, None)
    assert first.new_key is not None and len(first.new_key) >= 16 and statuses == [200]
    second, statuses = serve(tmp_path, None, first.new_key)
    assert second.new_key is None and statuses == [200]
    assert first.new_key.encode() not in (tmp_path / "jobs.db").read_bytes()
    mine = "a-key-of-one's-own"
    third, statuses = serve(tmp_path, mine, mine, first.new_key)
    assert third.new_key is None and statuses == [200, 401]


def test_a_taken_port_is_a_clear_error(tmp_path: Path) -> None:
    """It names the port, and the folder is free again."""

    async def main(port: int) -> None:
        with JobStore(tmp_path) as store:
            backend = LocalBackend(path=tmp_path)
            async with running(store, backend, BackendJobRunner(backend), ListenAddress("127.0.0.1", port, "k" * 20)):
                raise AssertionError("nobody can listen there")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port}.*another port"):
            asyncio.run(main(port))
    serve(tmp_path, None)
