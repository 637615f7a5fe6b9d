"""The example of docs/cluster-serve.md runs against a server, and the page's tables are what the server has."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

import ludus
from ludus.cluster.address import ListenAddress
from ludus.cluster.serve.app import Api
from ludus.cluster.serve.jobs import Jobs
from ludus.cluster.serve.server import running
from ludus.cluster.serve.store import JobStore
from ludus.compat.art.local_backend import LocalBackend
from ludus.compat.art.workshop import BackendJobRunner
from ludus.http.keys import digest
from tests.cluster.serve.scripted import ScriptedWorkshop
from tests.docs.pages import DOCS, blocks, run_block

KEY = "the-key-of-the-page"
CONFIG: dict[str, Any] = {"engine": {"kv_bytes": 2**26}, "model": {"lora": {"rank": 4}}}


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server that runs on a thread of its own until the block ends."""
    is_up, is_over, told = threading.Event(), asyncio.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        backend = LocalBackend(path=folder / "models", config=ludus.Config(**CONFIG))
        with JobStore(folder) as store:
            async with (
                backend,
                running(store, backend, BackendJobRunner(backend), ListenAddress("127.0.0.1", 0, KEY)) as server,
            ):
                told.append(server.url)
                is_up.set()
                await is_over.wait()

    thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=lambda: loop).run(serve()))
    thread.start()
    assert is_up.wait(timeout=60)
    try:
        yield told[0]
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
        loop.close()


@pytest.mark.timeout(300)  # the embedded model is trained
def test_the_example_runs(
    smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints what the page says; what the model logs stays in the client's folder."""
    del smollm2  # it is there
    monkeypatch.setenv("LUDUS_API_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "server") as url:
        names: dict[str, Any] = {"url": url}
        for code, printed in blocks("cluster-serve.md"):
            run_block(code, names)
            assert printed is None or capsys.readouterr().out == printed
    assert (tmp_path / "runs" / "mail" / "models" / "agent-001" / "history.jsonl").exists()


def test_every_route_is_on_the_page(tmp_path: Path) -> None:
    """Those of the protocol, by how they end."""
    page = (DOCS / "cluster-serve.md").read_text()
    with JobStore(tmp_path) as store:
        job_runner = ScriptedWorkshop()
        app = Api(Jobs(store, job_runner), job_runner, digest(KEY)).build()
    for route in app.routes:
        if isinstance(route, Route):
            shown = route.path.replace("/api/v1/models/{project}/{name}/", "…/{project}/{name}/")
            assert shown in page or route.path.replace("/api/v1/models", "") in page, route.path
