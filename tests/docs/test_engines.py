"""The examples of docs/engines.md run, and print what the page says; its tables are what there is."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route

from ludus.cluster.address import ListenAddress
from ludus.cluster.serving import serving_engine
from ludus.compat.config import Config
from ludus.engines.serving.app import EngineApi
from ludus.engines.table import ENGINES
from ludus.rewards.providers import PROVIDERS, Provider
from tests.docs.pages import DOCS, blocks, run_block
from tests.rewards.conftest import Endpoint, completion, endpoint

__all__ = ["endpoint"]  # a fixture


@contextlib.contextmanager
def serving(config: Config) -> Iterator[str]:
    """The URL of an engine, on a thread until the block ends."""
    is_up, is_over, told = threading.Event(), asyncio.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving_engine(config, ListenAddress("127.0.0.1", 0, None)) as served:
            told.append(served.url)
            is_up.set()
            await is_over.wait()

    thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=lambda: loop).run(serve()))
    thread.start()
    assert is_up.wait(timeout=100)
    try:
        yield told[0]
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()
        loop.close()


@pytest.mark.timeout(300)  # the embedded model is loaded twice
def test_every_example_runs(
    smollm2: Any, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against a server of the embedded model, and with OpenAI's address on this machine."""
    del smollm2  # it is there
    endpoint.answers = [completion("Hello, I bought a lamp.")]
    monkeypatch.setitem(PROVIDERS, "openai", Provider(endpoint.base_url, "OPENAI_API_KEY"))  # type: ignore[arg-type]
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with serving(Config(engine={"kv_bytes": 2**26}, model={"dtype": "float32"})) as url:
        names: dict[str, Any] = {"url": url}
        for code, printed in blocks("engines.md"):
            run_block(code, names)
            shown = capsys.readouterr().out
            assert printed is None or shown == printed


def test_every_kind_and_route_is_on_the_page() -> None:
    """Kinds of engines, and what our server answers."""
    page = (DOCS / "engines.md").read_text()
    for kind in ENGINES:
        assert f"| `{kind}` |" in page or f"| [`{kind}`](" in page, kind
    unused: Any = None
    for route in EngineApi(unused, unused, unused, model="", key_digest=None).build().routes:
        assert isinstance(route, Route) and route.path.replace(":int", "") in page, route
