"""Our engine behind a URL: the engine contract over its wire, new weights, its key, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from ludus.engines.base import Engine
from ludus.engines.http.base import UNPUBLISHED
from ludus.engines.lease import ComputeLease
from ludus.engines.local.engine import LocalEngine
from ludus.engines.local.settings import InferenceSettings
from ludus.engines.serving import engine as wire_words
from ludus.engines.serving.app import EngineApi
from ludus.engines.serving.engine import LudusEngine
from ludus.engines.serving.files import FileWeights
from ludus.engines.serving.weight_receiver import WeightReceiver
from ludus.engines.vllm.engine import VllmEngine, VllmProtocol
from ludus.engines.weights import WeightFiles
from ludus.errors import BackendError, UserError
from ludus.http.keys import digest
from ludus.http.server import HttpServer
from ludus.models.load import LoadedModel, load_model
from ludus.models.settings import LoraSettings, ModelSettings
from ludus.text.tokenizer import Tokenizer
from ludus.types import Sampling
from tests.engines.contract import CHECKS, PROMPT, call

NAME = "tiny"


class Moved:
    """All trained weights of a model, with a constant added."""

    def __init__(self, model: LoadedModel, amount: float) -> None:
        self._model = model
        self._amount = amount
        self.num_copies = 0

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        for name, parameter in self._model.trainable.items():
            yield from self._model.saved([(name, parameter.detach() + self._amount)])

    def copy_into_shared(self) -> None:
        self.num_copies += 1


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


@contextmanager
def serving(settings: ModelSettings, tokenizer: Tokenizer, scratch: Path, key: str | None = None) -> Iterator[str]:
    """The URL of a server of the model, on a thread."""
    model = load_model(settings)
    engine = LocalEngine(model, tokenizer, InferenceSettings(kv_bytes=2**22), lease=ComputeLease(), seed=3)
    weight_receiver = WeightReceiver(engine, lambda files: FileWeights(model, files), scratch=scratch)
    api = EngineApi(engine, tokenizer, weight_receiver, model=NAME, key_digest=None if key is None else digest(key))
    with HttpServer(api.build(), name="engine") as server:
        yield server.base_url
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def settings(tiny_model_folder: Path) -> ModelSettings:
    return ModelSettings(path=str(tiny_model_folder), dtype="float32")


@pytest.fixture(scope="module")
def model(settings: ModelSettings) -> LoadedModel:
    """The same weights as the server's, in tensors of their own."""
    return load_model(settings)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def url(settings: ModelSettings, tokenizer: Tokenizer, scratch: Path) -> Iterator[str]:
    with serving(settings, tokenizer, scratch) as url:
        yield url


async def score(model: LoadedModel, tokenizer: Tokenizer, amount: float) -> tuple[float, ...]:
    """What an engine of this process says of PROMPT, with `amount` added to all weights."""
    engine = LocalEngine(model, tokenizer, InferenceSettings(kv_bytes=2**22), lease=ComputeLease(), seed=3)
    move(model, amount)
    scored = await engine.score(PROMPT)
    move(model, -amount)
    await engine.close()
    return scored


def move(model: LoadedModel, amount: float) -> None:
    with torch.no_grad():
        for parameter in model.trainable.values():
            parameter.add_(amount)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_engine_contract(
    check: Callable[[Callable[[], Engine]], None], url: str, tokenizer: Tokenizer
) -> None:
    """Every point of the contract holds over HTTP, publishing included."""
    check(lambda: LudusEngine.connect(url, tokenizer))


def test_how_long_the_prompt_took_comes_with_the_answer(url: str, tokenizer: Tokenizer) -> None:
    async def scenario() -> None:
        engine = LudusEngine.connect(url, tokenizer)
        prefill_s = (await engine.generate(call())).prefill_s
        assert prefill_s is not None and prefill_s > 0.0
        await engine.close()

    asyncio.run(scenario())


def test_streamed_weights_are_sampled_from(
    settings: ModelSettings, model: LoadedModel, tokenizer: Tokenizer, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published in several files is what the server samples from; tokens say so, and nothing is left lying."""
    monkeypatch.setattr(wire_words, "BUCKET_BYTES", 2**15)  # some tensors are larger, some fit in together
    weights = Moved(model, 0.01)

    async def scenario(url: str) -> None:
        engine = LudusEngine.connect(url, tokenizer)
        before = await engine.score(PROMPT)
        await engine.publish(4, weights)
        assert await engine.score(PROMPT) == pytest.approx(await score(model, tokenizer, 0.01), abs=1e-5) != before
        assert set((await engine.generate(call())).versions) == {4} == {engine.stats().version}
        await engine.close()

    with serving(settings, tokenizer, scratch) as url:
        asyncio.run(scenario(url))
        assert httpx.get(f"{url}/stats").json()["version"] == 4
    assert weights.num_copies == 1 and not list(scratch.iterdir())


def test_adapters_travel_alone(tiny_model_folder: Path, tokenizer: Tokenizer, scratch: Path) -> None:
    """Where adapters are trained, they are what is sent, by peft's names; a server without them says what it lacks."""
    settings = ModelSettings(path=str(tiny_model_folder), dtype="float32", lora=LoraSettings(rank=2))
    model = load_model(settings, seed=5)
    weights = Moved(model, 0.05)
    assert all("lora" in name for name, _ in weights.named_tensors())

    async def scenario(url: str, files: WeightFiles | None = None) -> None:
        engine = LudusEngine.connect(url, tokenizer, files=files)
        try:
            await engine.publish(1, weights)
            assert await engine.score(PROMPT) == pytest.approx(await score(model, tokenizer, 0.05), abs=1e-5)
        finally:
            await engine.close()

    with serving(settings, tokenizer, scratch) as url:
        asyncio.run(scenario(url))
    assert model.adapter_config is not None
    files = WeightFiles(scratch / "adapters", adapter_config=model.adapter_config)
    with serving(settings, tokenizer, scratch) as url:
        asyncio.run(scenario(url, files))
    files.close()
    plain, lacking = settings.model_copy(update={"lora": None}), r"lora_A.*with the same model\.lora"
    with serving(plain, tokenizer, scratch) as url, pytest.raises(UserError, match=lacking):
        asyncio.run(scenario(url))


def test_weights_may_lie_in_files(
    settings: ModelSettings, model: LoadedModel, tokenizer: Tokenizer, scratch: Path, tmp_path: Path
) -> None:
    """The same weights by the path of their file, which may go afterwards."""
    path = tmp_path / "model.safetensors"
    save_file(dict(Moved(model, 0.02).named_tensors()), path)
    with serving(settings, tokenizer, scratch) as url:
        assert httpx.post(f"{url}/weights/1", json={"path": str(path)}).json() == {"version": 1}
        path.unlink()
        scored = httpx.post(f"{url}/score", json={"token_ids": PROMPT}).json()["logprobs"]
        lost = httpx.post(f"{url}/weights/2", json={"path": str(path)})
    assert scored == pytest.approx(asyncio.run(score(model, tokenizer, 0.02)), abs=1e-5)
    assert lost.status_code == 400 and "is no file of safetensors" in lost.json()["error"]["message"]


def test_weights_travel_by_files(
    settings: ModelSettings, model: LoadedModel, tokenizer: Tokenizer, scratch: Path, tmp_path: Path
) -> None:
    """Given files, a version is written once for all engines, and each of them reads it from there."""
    files = WeightFiles(tmp_path / "weights")

    async def scenario(urls: list[str]) -> None:
        engines = [LudusEngine.connect(url, tokenizer, files=files) for url in urls]
        for engine in engines:
            await engine.publish(1, Moved(model, 0.03))
        expected = await score(model, tokenizer, 0.03)
        for engine in engines:
            assert await engine.score(PROMPT) == pytest.approx(expected, abs=1e-5)
            await engine.close()

    with serving(settings, tokenizer, scratch) as first, serving(settings, tokenizer, scratch) as second:
        asyncio.run(scenario([first, second]))
    assert [path.name for path in files.folder.iterdir()] == ["v1.safetensors"]


def test_a_server_that_served_another_run_is_given_this_ones_weights(
    settings: ModelSettings, model: LoadedModel, tokenizer: Tokenizer, scratch: Path
) -> None:
    """Its weights are nobody's known version until the run publishes its own, whose versions begin at 0 again."""

    async def scenario(url: str) -> None:
        for is_first in (True, False):
            engine = LudusEngine.connect(url, tokenizer)
            versions = (1, 2) if is_first else (0, 1)
            assert engine.stats().version == (0 if is_first else UNPUBLISHED)
            assert set((await engine.generate(call())).versions) == {engine.stats().version}
            for version in versions:
                await engine.publish(version, Moved(model, 0.0))
                assert set((await engine.generate(call())).versions) == {version} == {engine.stats().version}
            await engine.close()

    with serving(settings, tokenizer, scratch) as url:
        asyncio.run(scenario(url))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty"),
        (b"\xff" * 100, "its header would have"),
        (b"\x02\0\0\0\0\0\0\0[]", "no safetensors"),
        (b"\x40\0\0\0\0\0\0\0{", "in the middle"),
    ],
)
def test_what_are_no_weights_changes_nothing(url: str, scratch: Path, body: bytes, said: str) -> None:
    """A body that is no safetensors, or not all of it, is refused; the version stays, and nothing is left lying."""
    before = httpx.get(f"{url}/stats").json()["version"]
    refused = httpx.put(f"{url}/weights/{before + 1}", content=body)
    assert refused.status_code == 400 and said in refused.json()["error"]["message"]
    assert httpx.get(f"{url}/stats").json()["version"] == before and not list(scratch.iterdir())


def test_weights_that_break_off_change_nothing(
    url: str, model: LoadedModel, tokenizer: Tokenizer, scratch: Path
) -> None:
    """A trainer that dies while it sends leaves the old weights and version; the next publish is taken."""

    class Dying(Moved):
        def named_tensors(self) -> Iterable[tuple[str, Any]]:
            yield next(iter(super().named_tensors()))
            raise RuntimeError("the trainer is gone")

    async def scenario() -> None:
        engine = LudusEngine.connect(url, tokenizer)
        version, before = engine.stats().version, await engine.score(PROMPT)
        with pytest.raises(RuntimeError):
            await engine.publish(version + 1, Dying(model, 0.5))
        assert (engine.stats().version, await engine.score(PROMPT)) == (version, before)
        await engine.publish(version + 1, Moved(model, 0.0))
        await engine.close()

    asyncio.run(scenario())
    assert not list(scratch.iterdir())


def test_wants_its_key(settings: ModelSettings, tokenizer: Tokenizer, scratch: Path) -> None:
    """Without the key only the probe is answered."""
    with serving(settings, tokenizer, scratch, key="k" * 20) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        for method, path in (("GET", "/v1/models"), ("PUT", "/weights/1"), ("POST", "/inference/v1/generate")):
            assert httpx.request(method, f"{url}{path}").status_code == 401
        with pytest.raises(UserError, match="wants its key"):
            LudusEngine.connect(url, tokenizer)
        engine = LudusEngine.connect(url, tokenizer, api_key="k" * 20)
        assert asyncio.run(engine.generate(call())).token_ids
        asyncio.run(engine.close())


def test_clients_of_vllm_sample_the_same(url: str, tokenizer: Tokenizer) -> None:
    """Requests and events are vLLM's: its client's words get the tokens that ours get."""
    ours = LudusEngine.connect(url, tokenizer)
    theirs = VllmEngine(VllmProtocol(ours.protocol.server, ours.protocol.model, reports_processed_logprobs=True))
    answers = [asyncio.run(engine.generate(call())) for engine in (ours, theirs)]
    assert answers[0].token_ids == answers[1].token_ids and answers[0].logprobs == answers[1].logprobs
    assert answers[0].stop_reason == answers[1].stop_reason
    for engine in (ours, theirs):
        asyncio.run(engine.close())


def test_answers_without_a_stream(url: str) -> None:
    """Plain HTTP gets the whole answer at once: tokens, logprobs, likeliest tokens, versions, why it ended."""
    asked = {"token_ids": PROMPT, "sampling_params": {"seed": 1, "max_tokens": 4, "logprobs": 2, "top_k": 3}}
    answer = httpx.post(f"{url}/inference/v1/generate", json=asked).json()
    (choice,) = answer["choices"]
    assert len(choice["token_ids"]) == len(choice["versions"]) == len(choice["kept_ids"]) == 4
    assert choice["finish_reason"] == "length" and choice["seed"] == 1
    assert [len(each["top_logprobs"]) for each in choice["logprobs"]["content"]] == [2] * 4
    assert answer["usage"]["completion_tokens"] == 4


def test_ends_calls_by_name(url: str) -> None:
    """A call that is aborted by its id ends its stream with what it had."""
    asked = {"request_id": "long", "token_ids": PROMPT, "sampling_params": {"ignore_eos": True}, "stream": True}
    with httpx.stream("POST", f"{url}/inference/v1/generate", json=asked) as response:
        events = (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {"))
        num_tokens = len(next(events)["choices"][0]["token_ids"])
        httpx.post(f"{url}/abort_requests", json={"request_ids": ["long", "unknown"]})
        rest = [event["choices"][0] for event in events if event["choices"]]
    assert rest[-1]["finish_reason"] == "abort"
    assert 0 < num_tokens + sum(len(choice["token_ids"]) for choice in rest) < 500


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/inference/v1/generate", {"token_ids": [3], "n": 2}, "argument supplied: n."),
        (
            "/inference/v1/generate",
            {"token_ids": [3], "sampling_params": {"best_of": 2}},
            "sampling_params.best_of",
        ),
        (
            "/inference/v1/generate",
            {"token_ids": [3], "sampling_params": {"top_p": 0}},
            "sampling_params.top_p",
        ),
        ("/inference/v1/generate", {"token_ids": [3], "model": "other"}, "'other' is not served here"),
        ("/inference/v1/generate", {"token_ids": []}, "token_ids"),
        ("/inference/v1/generate", {"token_ids": [3] * 600}, "context"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": True}, "add_special_tokens"),
        ("/pause?mode=abort", {}, "say mode=keep"),
    ],
)
def test_refuses_what_it_does_not_know(url: str, path: str, body: dict[str, Any], said: str) -> None:
    """Nothing that would change an answer is dropped silently."""
    refused = httpx.post(f"{url}{path}", json=body)
    assert refused.status_code == 400 and said in refused.json()["error"]["message"]


def test_what_cannot_be_connected_to_says_why(tokenizer: Tokenizer) -> None:
    """No server: the next step."""
    with pytest.raises(BackendError, match=r"no Ludus engine answers at http://127\.0\.0\.1:9"):
        LudusEngine.connect("http://127.0.0.1:9", tokenizer)


def test_what_an_answer_was_cut_from_comes_along(url: str, tokenizer: Tokenizer) -> None:
    """Of an answer that is cut and told with the likeliest, both come for every token."""
    asked = Sampling(seed=7, max_new_tokens=9, temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, top_logprobs=2)
    engine = LudusEngine.connect(url, tokenizer)
    sampled = asyncio.run(engine.generate(call(sampling=asked)))
    asyncio.run(engine.close())
    assert len(sampled.kept_ids) == len(sampled.top_logprobs) == len(sampled.token_ids)
    assert all(token in (kept or ()) for token, kept in zip(sampled.token_ids, sampled.kept_ids, strict=True))
