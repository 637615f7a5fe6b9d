"""The engine contract against a real vLLM server: `make test-engines`; not among the tests that need nothing else.

LUDUS_VLLM=.peers/vllm/bin/python   interpreter of an environment with vLLM; bench/peers.sh sets it up
LUDUS_MODEL=…                     folder of the model
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from ludus.cluster.local import LocalProcess
from ludus.engines.lease import ComputeLease
from ludus.engines.local.engine import LocalEngine
from ludus.engines.local.settings import InferenceSettings
from ludus.engines.process import ReplicaAddress
from ludus.engines.vllm.command import vllm_command
from ludus.engines.vllm.delivery import vllm_delivery
from ludus.engines.vllm.engine import VllmEngine
from ludus.engines.vllm.settings import VllmSettings
from ludus.engines.weights import LoadedWeights, WeightFiles
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.loop.step import trainers_turn
from ludus.models.load import LoadedModel, load_model
from ludus.models.resolve import resolve_model
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.processes.address import free_port
from ludus.text.chat import ChatText
from ludus.text.tokenizer import Tokenizer
from ludus.types import ChatRequest, Message, Sampled, Sampling, TokenChunk
from tests.engines.contract import CHECKS, call, check_grammar, check_logprobs_are_those_of_the_tokens

START_S = 900.0  # with everything compiled, on a machine that does other things too
TOLERANCE = 5e-3
"""Between two programs, or a prompt scored at once and the same tokens sampled one by one, in fp32. In bf16 it is
0.3, or more for a model that was changed at random, which would tell little."""
PROBE = "The capital of France is Paris, and the capital of Germany is Berlin. Water boils at one hundred degrees."
NUM_ACROSS = 900
"""Tokens of a call that runs across a publish: they take vLLM longer than the weights take to be written."""
SMALL = {"max_model_len": 1024, "enforce_eager": True}
LORA = LoraSettings(rank=4, target_modules=("q_proj", "v_proj", "down_proj"))
# The suite's grammar is spelled in the ids of the tests' own small tokenizer.
KEPT = [check for check in CHECKS if check is not check_grammar]


@contextmanager
def serving(engine: VllmSettings, model: ModelSettings, log: Path) -> Iterator[ReplicaAddress]:
    """A vLLM as Ludus starts it, while the block runs."""
    address = ReplicaAddress("127.0.0.1", free_port("127.0.0.1"), "a key of this test", seed=0, index=0)
    command = vllm_command(engine, model, address)
    server = LocalProcess([*command.argv], {**os.environ, **command.env}, log)
    try:
        until = time.monotonic() + START_S
        while not _is_well(address.url):
            assert server.poll() is None and time.monotonic() < until, f"vLLM did not start: {server.tail(30)}"
            time.sleep(0.5)
        yield address
    finally:
        server.stop(10.0)


def _is_well(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.TransportError:
        return False


def settings(**changed: Any) -> VllmSettings:
    return VllmSettings(python=os.environ["LUDUS_VLLM"], max_running=16, **{"args": SMALL, **changed})


@pytest.fixture(scope="module")
def model() -> ModelSettings:
    return ModelSettings(path=os.environ.get("LUDUS_MODEL", "smollm2-135m"), dtype="float32")


@pytest.fixture(scope="module")
def folder(model: ModelSettings) -> Path:
    return resolve_model(model.path)


@pytest.fixture(scope="module")
def address(model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaAddress]:
    with serving(settings(), model, tmp_path_factory.mktemp("vllm") / "log.txt") as address:
        yield address


@pytest.fixture
def files() -> Iterator[WeightFiles]:
    files = WeightFiles.in_shared_memory()
    yield files
    files.close()


def connect(address: ReplicaAddress, folder: Path, files: WeightFiles, **options: Any) -> VllmEngine:
    delivery = {**vllm_delivery(settings(), files), **options}
    return VllmEngine.connect(address.url, Tokenizer.load(folder), api_key=address.key, **delivery)


@asynccontextmanager
async def connected(
    address: ReplicaAddress, folder: Path, files: WeightFiles, **options: Any
) -> AsyncIterator[VllmEngine]:
    engine = connect(address, folder, files, **options)
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize("check", KEPT, ids=lambda check: check.__name__)
@pytest.mark.timeout(START_S * 2)
def test_keeps_the_engine_contract(
    check: Callable[..., None], address: ReplicaAddress, folder: Path, files: WeightFiles
) -> None:
    """Every point of the contract."""
    if check is check_logprobs_are_those_of_the_tokens:
        check = partial(check, tolerance=TOLERANCE)
    check(lambda: connect(address, folder, files))


def test_nobody_gets_in_without_the_key(address: ReplicaAddress) -> None:
    """Also where vLLM's own key would not stand: pauses, weights, calls to the workers."""
    for path in ("/pause", "/collective_rpc", "/update_weights", "/v1/completions", "/inference/v1/generate"):
        assert httpx.post(address.url + path, json={}).status_code == httpx.codes.UNAUTHORIZED, path
        wrong = {"authorization": "Bearer another"}
        assert httpx.post(address.url + path, json={}, headers=wrong).status_code == httpx.codes.UNAUTHORIZED, path
    assert httpx.get(f"{address.url}/health").is_success


@pytest.mark.timeout(START_S * 2)
@pytest.mark.parametrize("keep_kv", [True, False], ids=["keep", "recompute"])
def test_weights_change_in_place(
    address: ReplicaAddress, folder: Path, files: WeightFiles, model: ModelSettings, keep_kv: bool
) -> None:
    """After each publish a probe has the trainer's logprobs, while a call in flight goes on."""
    trained = load_model(model)

    async def scenario() -> None:
        async with connected(address, folder, files, keep_kv=keep_kv) as engine:
            await check_publishes(engine, trained, Tokenizer.load(folder).encode(PROBE))

    asyncio.run(scenario())


@pytest.mark.timeout(START_S * 2)
def test_tokens_come_together(address: ReplicaAddress, folder: Path, files: WeightFiles, model: ModelSettings) -> None:
    """The first at once, then sixteen at a time; with the last one vLLM says which weights sampled each."""
    trained = load_model(model)

    async def scenario() -> None:
        async with connected(address, folder, files, stream_interval=16) as engine:
            await engine.publish(0, LoadedWeights(trained))
            chunks: list[TokenChunk] = []
            asked = Sampling(seed=1, max_new_tokens=60, ignore_eos=True)
            await engine.generate(call("together", sampling=asked), chunks.append)
            assert [len(chunk.token_ids) for chunk in chunks] == [1, 16, 16, 16, 11]
            across = Across(engine, 1)
            await across.has_begun.wait()
            await engine.publish(1, LoadedWeights(trained))
            sampled = await across.end()
            assert list(sampled.versions) == sorted(sampled.versions) and set(sampled.versions) == {0, 1}

    asyncio.run(scenario())


@pytest.mark.timeout(START_S * 2)
def test_it_sleeps_through_the_trainers_turn(
    address: ReplicaAddress, folder: Path, files: WeightFiles, model: ModelSettings
) -> None:
    """A call in flight loses nothing, is computed anew under the weights of the turn, and its time stands still; one
    that comes meanwhile waits. On a processor vLLM does all of that and keeps its memory."""
    trained = load_model(model)
    probe = Tokenizer.load(folder).encode(PROBE)

    async def scenario() -> None:
        shared = vllm_delivery(settings(placement="shared"), files)
        async with connected(address, folder, files, **shared) as engine:
            await engine.publish(0, LoadedWeights(trained))
            across = Across(engine, 1)
            await across.has_begun.wait()
            async with trainers_turn(engine):
                assert (await asking(engine, "/is_sleeping"))["is_sleeping"]
                await engine.check()
                meanwhile = asyncio.create_task(engine.generate(call("meanwhile", sampling=Sampling(seed=1))))
                change(trained, 1)
                await engine.publish(1, LoadedWeights(trained))
                assert (await asking(engine, "/is_sleeping"))["is_sleeping"] and not meanwhile.done()
            assert not (await asking(engine, "/is_sleeping"))["is_sleeping"]
            assert await engine.score(probe) == pytest.approx(trainer_logprobs(trained, probe), abs=TOLERANCE)
            assert set((await meanwhile).versions) == {1}
            assert set((await across.end()).versions) == {0, 1}
            await engine.pause()
        async with connected(address, folder, files, **shared) as engine:  # it was left asleep
            assert (await engine.generate(call("woken"))).token_ids

    async def asking(engine: VllmEngine, path: str) -> dict[str, Any]:
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {address.key}"}) as http:
            found: dict[str, Any] = (await http.get(address.url + path)).json()
            return found

    asyncio.run(scenario())


@pytest.mark.timeout(START_S * 2)
def test_adapters_are_loaded_hot(folder: Path, tmp_path: Path) -> None:
    """The same of adapters, to a server that goes on and to one that sleeps through each publish."""
    asked = ModelSettings(path=str(folder), dtype="float32", lora=LORA)
    files = WeightFiles.in_shared_memory(adapter_config=load_model(asked).adapter_config)

    async def scenario(address: ReplicaAddress) -> None:
        for placement in ("split", "shared"):
            delivery = vllm_delivery(settings(placement=placement), files)
            async with connected(address, folder, files, **delivery) as engine:
                await check_publishes(engine, load_model(asked), Tokenizer.load(folder).encode(PROBE))

    try:
        with serving(settings(), asked, tmp_path / "log.txt") as address:
            asyncio.run(scenario(address))
    finally:
        files.close()


async def check_publishes(engine: VllmEngine, model: LoadedModel, probe: tuple[int, ...]) -> None:
    """Three versions, the first that of the model's folder; a call runs across the last two."""
    before = trainer_logprobs(model, probe)
    moved = []
    for version in range(3):
        if version:
            change(model, version)
            across = Across(engine, version)
            await across.has_begun.wait()
        await engine.publish(version, LoadedWeights(model))
        ours = trainer_logprobs(model, probe)
        assert await engine.score(probe) == pytest.approx(ours, abs=TOLERANCE)
        moved.append(max(abs(one - other) for one, other in zip(ours, before, strict=True)))
        if version:
            sampled = await across.end()
            assert list(sampled.versions) == sorted(sampled.versions)
            assert set(sampled.versions) == {version - 1, version}
    assert moved[0] == 0.0 and moved[1] > 5 * TOLERANCE and moved[2] > 5 * TOLERANCE


class Across:
    """A call as long as the model takes, from before the publish of `version` until it has tokens of it."""

    def __init__(self, engine: VllmEngine, version: int) -> None:
        self._engine, self._version = engine, version
        self.has_begun, self._has_moved = asyncio.Event(), asyncio.Event()
        longest = Sampling(seed=1, max_new_tokens=NUM_ACROSS, ignore_eos=True)
        self._call = call(f"call {version}", sampling=longest)
        self._running = asyncio.create_task(engine.generate(self._call, self._hear))

    def _hear(self, chunk: TokenChunk) -> None:
        self.has_begun.set()
        if self._version in chunk.versions:
            self._has_moved.set()

    async def end(self) -> Sampled:
        hearing = asyncio.create_task(self._has_moved.wait())
        await asyncio.wait((hearing, self._running), return_when=asyncio.FIRST_COMPLETED)
        hearing.cancel()
        await self._engine.abort(self._call.id)
        return await self._running


def change(model: LoadedModel, seed: int) -> None:
    """Another model, as far from the first as training would hardly bring it."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.trainable.items():
            if model.adapter is None and parameter.ndim == 2 and "embed" not in name:
                parameter.add_(0.1 * parameter.std() * torch.randn_like(parameter))
            elif "lora_B" in name:
                parameter.normal_(std=0.05)


def trainer_logprobs(model: LoadedModel, token_ids: tuple[int, ...]) -> tuple[float, ...]:
    """Of every token but the first, by the model that is trained."""
    engine = LocalEngine(model, Tokenizer.load(model.folder), InferenceSettings(), lease=ComputeLease(), seed=0)

    async def scored() -> tuple[float, ...]:
        found = await engine.score(token_ids)
        await engine.close()
        return found

    with ThreadPoolExecutor(1) as thread:  # the caller is on an event loop
        return thread.submit(asyncio.run, scored()).result()


def test_logprobs_are_those_of_the_narrowed_distribution(
    address: ReplicaAddress, folder: Path, files: WeightFiles
) -> None:
    """Among three kept tokens the probabilities sum to 1; which they were is unknown without masks."""

    async def scenario() -> None:
        engine = connect(address, folder, files)
        asked = Sampling(seed=5, top_k=3, top_logprobs=3, temperature=0.7, max_new_tokens=8)
        sampled = await engine.generate(call(sampling=asked))
        await engine.close()
        assert sampled.kept_ids == (None,) * len(sampled.token_ids)
        for token, logprob, tops in zip(sampled.token_ids, sampled.logprobs, sampled.top_logprobs, strict=True):
            assert dict(tops)[token] == logprob
            assert sum(math.exp(value) for _, value in tops) == pytest.approx(1.0, abs=1e-3)

    asyncio.run(scenario())


def test_a_session_goes_on_with_what_was_sampled(address: ReplicaAddress, folder: Path, files: WeightFiles) -> None:
    """Two turns through the recorder: the second prompt begins with the tokens of the first, and nothing forks."""

    async def scenario() -> None:
        text = ChatText.load(folder)
        engine = connect(address, folder, files)
        session = Recorder(engine, text).open(SessionSpec("real"))
        asked = Sampling(seed=1, max_new_tokens=12)
        history = (Message("user", "Name a colour."),)
        (first,) = await session.complete(ChatRequest(history, sampling=asked))
        (second,) = await session.complete(
            ChatRequest((*history, first.reply, Message("user", "Another one.")), sampling=asked)
        )
        record = await session.aclose("done")
        await engine.close()
        assert (second.prefix, second.fork) == (first.id, None)
        assert record.path_ids(second.node)[: len(record.path_ids(first.node))] == record.path_ids(first.node)

    asyncio.run(scenario())
