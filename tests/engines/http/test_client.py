"""An engine behind a URL, whichever kind of server it is: how it is reached, and when its calls and publishes end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from ludus.engines.http.client import HttpEngine
from ludus.engines.http.ludus import LudusEngine
from ludus.engines.http.sglang import SglangEngine
from ludus.engines.http.vllm import VllmEngine
from ludus.engines.scripted import ScriptedEngine
from ludus.engines.serving import EngineApi, Inbox
from ludus.http import HttpServer
from ludus.text.tokenizer import Tokenizer
from tests.engines.contract import NoNewWeights, call
from tests.engines.http import sglang_server, vllm_server

Connect = Callable[[str, Tokenizer], HttpEngine]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


@contextmanager
def serving(engine: ScriptedEngine, tokenizer: Tokenizer, port: int = 0) -> Iterator[str]:
    """The URL of a server of ours with written answers."""
    inbox = Inbox(engine, lambda files: NoNewWeights())
    server = HttpServer(EngineApi(engine, tokenizer, inbox, model="m", key_digest=None).build(), name="engine")
    try:
        yield server.start(port=port)
    finally:
        server.stop()


def kinds(tokenizer: Tokenizer) -> Iterator[tuple[Connect, AbstractContextManager[str]]]:
    """Every kind of engine, and a server of it."""
    yield LudusEngine.connect, serving(ScriptedEngine(answer, tokenizer), tokenizer)
    yield VllmEngine.connect, vllm_server.serving(vllm_server.StandIn(answer, tokenizer))
    yield SglangEngine.connect, sglang_server.serving(sglang_server.StandIn(answer, tokenizer))


def answer(asked: object) -> list[int]:
    del asked
    return [9] * 40


def test_no_proxy_of_the_environment_is_asked(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What travels to an engine, the run's key among it, is shown to nobody else."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody answers
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for connect, server in kinds(tokenizer):
        with server as url:
            engine = connect(url, tokenizer)
            assert asyncio.run(engine.generate(call())).token_ids
            asyncio.run(engine.close())
