"""An engine behind a URL, whichever kind of server it is: how it is reached, and when its calls and publishes end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from ludus.engines.base import OnTokens
from ludus.engines.http.base import UNPUBLISHED, error_for_status
from ludus.engines.http.client import HttpEngine
from ludus.engines.routed.engine import RoutedEngine
from ludus.engines.scripted import ScriptedEngine
from ludus.engines.serving.app import EngineApi
from ludus.engines.serving.engine import LudusEngine
from ludus.engines.serving.weight_receiver import WeightReceiver
from ludus.engines.sglang.engine import SglangEngine
from ludus.engines.vllm.engine import VllmEngine
from ludus.engines.vllm.weights import FileTransfer
from ludus.engines.weights import WeightFiles
from ludus.errors import BackendError, UserError
from ludus.http.server import HttpServer
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled, Sampling
from tests.engines.contract import NoNewWeights, call
from tests.engines.sglang import sglang_server
from tests.engines.vllm import vllm_server


class OneTensor:
    """A weight source that changes one tensor."""

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        yield "model.norm.weight", torch.ones(4)

    def copy_into_shared(self) -> None:
        pass


class Restarting(ScriptedEngine):
    """The engine of a server that may be started again at its URL."""

    def start_again(self) -> None:
        self._version = 0


Connect = Callable[[str, Tokenizer], HttpEngine]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


@contextmanager
def serving(engine: ScriptedEngine, tokenizer: Tokenizer) -> Iterator[str]:
    """The URL of a server of ours with scripted answers."""
    weight_receiver = WeightReceiver(engine, lambda files: NoNewWeights())
    server = HttpServer(
        EngineApi(engine, tokenizer, weight_receiver, model="m", key_digest=None).build(), name="engine"
    )
    try:
        yield server.start()
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
    """What is sent to an engine, the run's key among it, is shown to nobody else."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody answers
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for connect, server in kinds(tokenizer):
        with server as url:
            engine = connect(url, tokenizer)
            assert asyncio.run(engine.generate(call())).token_ids
            asyncio.run(engine.close())


def test_a_server_of_ours_that_starts_again_gets_its_weights_again(tokenizer: Tokenizer) -> None:
    """It has the weights it was started with: the next health check sees it and gives it the last."""

    async def scenario(url: str) -> None:
        engine = LudusEngine.connect(url, tokenizer)
        router = RoutedEngine([engine], stop_ids=tokenizer.stop_ids)
        for version in (1, 2):
            await router.publish(version, OneTensor())
            await router.check_replicas()
        behind.start_again()
        await router.check_replicas()
        assert behind.stats().version == 2 == engine.stats().version
        assert set((await router.generate(call())).versions) == {2}
        await router.close()

    behind = Restarting(answer, tokenizer)
    with serving(behind, tokenizer) as url:
        asyncio.run(scenario(url))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_another_server_that_starts_again_gets_its_weights_again(
    kind: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """The same for those that say which weights they have; what had been sent to them once is sent again."""
    files = WeightFiles(tmp_path / "weights")

    async def scenario(engine: HttpEngine, restart: Callable[[], None]) -> None:
        router = RoutedEngine([engine], stop_ids=tokenizer.stop_ids)
        await router.publish(0, OneTensor())
        await router.check_replicas()
        assert len(stand_in.loaded) == num_told
        restart()
        await engine.check()
        assert engine.stats().version == UNPUBLISHED
        await router.check_replicas()
        assert (engine.stats().version, len(stand_in.loaded)) == (0, num_told)
        assert set((await router.generate(call())).versions) == {0}
        await router.close()

    stand_in: Any
    if kind == "vllm":
        stand_in, num_told = vllm_server.StandIn(answer, tokenizer), 4
        with vllm_server.serving(stand_in) as url:
            engine: HttpEngine = VllmEngine.connect(url, tokenizer, transfer=FileTransfer(files))
            asyncio.run(scenario(engine, stand_in.restart))
    else:
        stand_in, num_told = sglang_server.StandIn(answer, tokenizer), 1
        with sglang_server.serving(stand_in) as url:
            asyncio.run(scenario(SglangEngine.connect(url, tokenizer, files=files), stand_in.loaded.clear))


def test_a_publish_whose_answer_was_lost_can_be_repeated(tokenizer: Tokenizer) -> None:
    """The server went on loading after its caller had left: asked again, it has the weights already."""

    class Late(WeightReceiver):
        async def receive(self, version: int, body: AsyncIterator[bytes]) -> None:
            await super().receive(version, body)
            has_loaded.set()
            await asyncio.sleep(0.1)

    async def scenario(url: str) -> None:
        engine = LudusEngine.connect(url, tokenizer)
        publishing = asyncio.create_task(engine.publish(1, OneTensor()))
        await asyncio.to_thread(has_loaded.wait, 10)
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await engine.check()
        assert engine.stats().version == 0
        await engine.publish(1, OneTensor())
        assert engine.stats().version == 1 and set((await engine.generate(call())).versions) == {1}
        with pytest.raises(UserError, match="greater than the published one"):
            await engine.publish(1, OneTensor())
        await engine.close()

    behind, has_loaded = ScriptedEngine(answer, tokenizer), threading.Event()
    api = EngineApi(behind, tokenizer, Late(behind, lambda files: NoNewWeights()), model="m", key_digest=None)
    with HttpServer(api.build(), name="engine") as server:
        asyncio.run(scenario(server.base_url))


@pytest.mark.parametrize(
    ("path", "num_finished"), [("/resume", 1), ("/finish_weight_update", 2), ("/start_weight_update", 1)]
)
def test_a_publish_that_was_broken_off_can_be_repeated(
    path: str, num_finished: int, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Wherever vLLM failed: an update that it has begun is finished first, one that it has ended is not begun again."""

    async def scenario(url: str) -> None:
        engine = VllmEngine.connect(url, tokenizer, transfer=FileTransfer(WeightFiles(tmp_path)))
        stand_in.fails_once.add(path)
        if path != "/start_weight_update":  # that one is simply asked again
            with pytest.raises(BackendError):
                await engine.publish(0, OneTensor())
        await engine.publish(0, OneTensor())
        assert set((await engine.generate(call())).versions) == {0} == {engine.stats().version}
        await engine.close()

    stand_in = vllm_server.StandIn(answer, tokenizer)
    with vllm_server.serving(stand_in) as url:
        asyncio.run(scenario(url))
    finished = [body for path, body in stand_in.loaded if path == "/finish_weight_update"]
    assert len(finished) == num_finished and finished[-1]["weight_version"].endswith("-0")


def test_an_abort_ends_a_call_that_is_on_its_way(tokenizer: Tokenizer) -> None:
    """Nobody has to wait until a call has begun to end it."""

    async def scenario(url: str) -> None:
        engine = LudusEngine.connect(url, tokenizer)
        for idx in range(10):
            running = asyncio.create_task(engine.generate(call(f"{idx}")))
            await asyncio.sleep(0)
            await engine.abort(f"{idx}")
            assert (await running).stop_reason == "abort"
        await engine.close()

    with serving(ScriptedEngine(answer, tokenizer, token_delay_s=0.01), tokenizer) as url:
        asyncio.run(scenario(url))


def test_an_answer_without_a_stream_ends_with_its_connection(tokenizer: Tokenizer) -> None:
    """A caller that has left wants nothing more sampled."""
    ended = threading.Event()

    class Telling(ScriptedEngine):
        async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
            try:
                return await super().generate(call, on_tokens)
            except asyncio.CancelledError:
                ended.set()
                raise

    body = {"token_ids": [3, 4, 5], "sampling_params": {"max_tokens": 150, "ignore_eos": True}}
    with serving(Telling(answer, tokenizer, token_delay_s=0.05), tokenizer) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/inference/v1/generate", json=body, timeout=0.1)
        assert ended.wait(timeout=5)


@pytest.mark.parametrize("path", ["/update_weights", "/resume"])
def test_a_replica_that_is_taken_away_while_it_takes_weights_is_missed_by_no_publish(
    path: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Whatever it was doing: its publish fails at once, as of a server that is gone, and others have the weights."""

    async def scenario(gone_url: str, url: str) -> None:
        gone, other = (
            VllmEngine.connect(each, tokenizer, transfer=FileTransfer(WeightFiles(tmp_path / name)))
            for name, each in (("gone", gone_url), ("other", url))
        )
        router = RoutedEngine([gone, other], stop_ids=tokenizer.stop_ids)
        publishing = asyncio.create_task(router.publish(0, OneTensor()))
        await asyncio.to_thread(hangs.was_asked.wait, 10)
        removed = await router.remove(0)
        await removed.close()
        async with asyncio.timeout(10):
            await publishing
        assert set((await router.generate(call())).versions) == {0}
        with pytest.raises(BackendError, match="closed"):
            await gone.score([1, 2, 3])
        await router.close()

    hangs = vllm_server.StandIn(answer, tokenizer)
    hangs.hangs_at = path
    with vllm_server.serving(hangs) as gone_url, vllm_server.serving(vllm_server.StandIn(answer, tokenizer)) as url:
        asyncio.run(scenario(gone_url, url))


def test_vllm_draws_the_rest_of_an_answer_anew(tokenizer: Tokenizer) -> None:
    """vLLM's generator begins with each request: an answer that goes on elsewhere has a seed of its own there, the same
    whenever it goes on from the same token; the record keeps the seed that was asked for."""

    async def scenario(url: str) -> None:
        engine = VllmEngine.connect(url, tokenizer)
        for num_before in (0, 3, 3, 4):
            asked = call(sampling=Sampling(seed=7, max_new_tokens=2), num_answered=num_before)
            assert (await engine.generate(asked)).seed == 7
        await engine.close()

    stand_in = vllm_server.StandIn(answer, tokenizer)
    with vllm_server.serving(stand_in) as url:
        asyncio.run(scenario(url))
    first, later, again, last = [body["sampling_params"]["seed"] for body in stand_in.asked[1:]]
    assert first == 7 and later == again and len({first, later, last}) == 3
    assert all(0 <= seed < 2**63 for seed in (later, last))


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, UserError), (404, UserError), (408, BackendError), (429, BackendError), (500, BackendError)],
)
def test_what_asks_for_another_time_is_no_fault_of_the_request(status: int, kind: type[Exception]) -> None:
    """A server that is too busy has failed, so that another one is asked; what cannot be answered cannot."""
    assert type(error_for_status("no", status)) is kind
