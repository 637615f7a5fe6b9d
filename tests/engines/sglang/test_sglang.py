"""An SGLang server as an engine: the engine contract over its wire, new weights, and what it cannot be asked."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ludus.engines.base import Engine
from ludus.engines.http.base import UNPUBLISHED
from ludus.engines.sglang.engine import VERSION, SglangEngine, sglang_delivery
from ludus.engines.sglang.settings import SglangSettings
from ludus.engines.weights import WeightFiles
from ludus.errors import BackendError, ConfigError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampling
from tests.engines.contract import ALLOWED, CHECKS, GRAMMAR, SAMPLING, TOKEN_DELAY_S, NoNewWeights, call
from tests.engines.sglang.sglang_server import CONTEXT, NUM_CACHED, RECORD, StandIn, serving


class OneTensor:
    """A weight source that changes one tensor."""

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        yield "lm_head.weight", torch.ones(2, 3)

    def copy_into_shared(self) -> None:
        pass


@pytest.fixture
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


@pytest.fixture
def files(tmp_path: Path) -> WeightFiles:
    return WeightFiles(tmp_path / "weights")


@pytest.fixture(params=[True, False], ids=["new tokens", "all tokens"])
def stand_in(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> StandIn:
    return StandIn(_improvise, tokenizer, is_incremental=request.param, token_delay_s=TOKEN_DELAY_S)


@pytest.fixture
def url(stand_in: StandIn) -> Iterator[str]:
    with serving(stand_in) as url:
        yield url


def _improvise(asked: Call) -> list[int]:
    """Thirty tokens that depend on the prompt and the seed; under a grammar, what the suite's allows."""
    if asked.sampling.grammar is not None:
        return [allowed[0] for allowed in ALLOWED]
    digest = hashlib.blake2b(f"{asked.prompt_ids}/{asked.sampling.seed}".encode(), digest_size=30).digest()
    banned = {token for token, _ in asked.sampling.logit_bias}
    return [3 + byte for byte in digest if 3 + byte not in banned]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_engine_contract(
    check: Callable[[Callable[[], Engine]], None], url: str, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """Every point of the contract holds over its wire, publishing included, however it streams."""
    check(lambda: SglangEngine.connect(url, tokenizer, files=files))


def test_every_option_reaches_the_server(url: str, stand_in: StandIn, tokenizer: Tokenizer) -> None:
    """What is asked of the engine is asked of SGLang, with all that ends an answer; cuts come with what they leave."""
    sampling = Sampling(
        temperature=0.7,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.1,
        seed=11,
        max_new_tokens=5,
        stop=("zebra",),
        stop_token_ids=(9,),
        logit_bias=((4, 2.0),),
        grammar=GRAMMAR,
    )
    engine = SglangEngine.connect(url, tokenizer)
    sampled = asyncio.run(engine.generate(call(sampling=sampling)))
    asyncio.run(engine.close())
    asked = stand_in.asked[-1]
    assert (asked["rid"], asked["input_ids"], asked["return_sampling_mask"]) == ("call", list(call().prompt_ids), True)
    assert asked["sampling_params"] == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.1,
        "sampling_seed": 11,
        "max_new_tokens": 5,
        "stop": ["zebra"],
        "stop_token_ids": sorted({9, *tokenizer.stop_ids}),
        "ignore_eos": False,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "logit_bias": {"4": 2.0},
        "ebnf": GRAMMAR,
    }
    assert sampled.num_cached_tokens == NUM_CACHED
    assert sampled.kept_ids == tuple((token, token + 1, token + 2) for token in sampled.token_ids)


def test_logprobs_of_a_cut_are_those_among_what_is_left(url: str, tokenizer: Tokenizer) -> None:
    """Of a narrowed distribution SGLang tells two logprobs; the one that the token was drawn with is recorded."""
    engine = SglangEngine.connect(url, tokenizer)
    whole, cut = (
        asyncio.run(engine.generate(call(name, sampling=replace(SAMPLING, top_k=top_k))))
        for name, top_k in (("whole", 0), ("cut", 3))
    )
    asyncio.run(engine.close())
    assert cut.token_ids == whole.token_ids
    assert cut.logprobs == pytest.approx([logprob / 2 for logprob in whole.logprobs])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"top_p": 0.9}, "with a top_k from 2 to 128, not with top_k=0"),
        ({"top_k": 500}, "not with top_k=500"),
        ({"ignore_eos": True, "stop_token_ids": (4,)}, "ignore stop_token_ids too"),
        ({"presence_penalty": 3.0}, "between -2 and 2"),
        ({"repetition_penalty": 2.5}, "up to 2"),
    ],
)
def test_what_cannot_be_recorded_exactly_is_refused(
    url: str, tokenizer: Tokenizer, changes: dict[str, Any], said: str
) -> None:
    """Options that SGLang would change, refuse, or tell no logprob of, are refused with what helps."""
    engine = SglangEngine.connect(url, tokenizer)
    with pytest.raises(UserError, match=said):
        asyncio.run(engine.generate(call(sampling=replace(SAMPLING, **changes))))
    asyncio.run(engine.close())


def test_weights_are_loaded_from_a_folder(
    url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """A publish pauses, has the server read the version's file and resumes, also while the engine is paused."""

    async def scenario() -> None:
        engine = SglangEngine.connect(url, tokenizer, files=files)
        assert engine.stats().version == UNPUBLISHED
        await engine.publish(0, OneTensor())
        await engine.pause()
        await engine.publish(1, OneTensor())
        waiting = asyncio.create_task(engine.generate(call()))
        await engine.resume()
        assert set((await waiting).versions) == {1}
        await engine.close()

    asyncio.run(scenario())
    loaded = [(label.rpartition("-")[2], names) for label, names in stand_in.loaded]
    assert loaded == [("0", ("lm_head.weight",)), ("1", ("lm_head.weight",))]


def test_weights_that_cannot_be_published_say_why(
    url: str, stand_in: StandIn, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Without files, with adapters, and where the server finds no file."""

    async def scenario() -> None:
        engine = SglangEngine.connect(url, tokenizer)
        with pytest.raises(UserError, match="connected to for sampling alone"):
            await engine.publish(1, NoNewWeights())
        await engine.close()
        files = WeightFiles(tmp_path / "gone")
        engine = SglangEngine.connect(url, tokenizer, files=files)
        stand_in.finds = lambda path: tmp_path / "another machine's" / path[1:]
        with pytest.raises(UserError, match="Cannot find any model weights"):
            await engine.publish(0, OneTensor())
        assert (await engine.generate(call())).token_ids and engine.stats().version == UNPUBLISHED
        await engine.close()

    asyncio.run(scenario())
    adapters = WeightFiles(tmp_path / "adapters", adapter_config={"r": 4})
    with pytest.raises(ConfigError, match=r"leave model\.lora unset with engine\.kind=sglang"):
        sglang_delivery(SglangSettings(urls=("http://h:1",)), adapters)


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"version": "0.4.9"}, r"version '0\.4\.9'; 0\.5\.23 or newer"),
        ({"enable_deterministic_inference": False}, "is set, and .* start it with --enable-deterministic-inference"),
    ],
)
def test_a_server_started_without_what_is_needed_is_refused(
    tokenizer: Tokenizer, info: dict[str, Any], said: str
) -> None:
    """At the start of a run, not in its middle."""
    with serving(StandIn(_improvise, tokenizer, info=info)) as url, pytest.raises(UserError, match=said):
        SglangEngine.connect(url, tokenizer, is_deterministic=True)


def test_nobody_has_to_be_deterministic(tokenizer: Tokenizer, files: WeightFiles) -> None:
    """It costs a third of the speed; a run that wants it says so, for servers that it starts and for others."""
    with serving(StandIn(_improvise, tokenizer, info={"enable_deterministic_inference": False})) as url:
        engine = SglangEngine.connect(url, tokenizer, **sglang_delivery(SglangSettings(), files))
        asyncio.run(engine.generate(call()))
        asyncio.run(engine.close())
        with pytest.raises(UserError, match="draws without the seeds"):
            SglangEngine.connect(url, tokenizer, **sglang_delivery(SglangSettings(deterministic=True), files))


def test_grammars_need_the_backend_that_reads_them(tokenizer: Tokenizer) -> None:
    """Our grammars are llguidance's."""
    with serving(StandIn(_improvise, tokenizer, info={"grammar_backend": "xgrammar"})) as url:
        engine = SglangEngine.connect(url, tokenizer)
        with pytest.raises(UserError, match="--grammar-backend llguidance"):
            asyncio.run(engine.generate(call(sampling=replace(SAMPLING, grammar=GRAMMAR))))
        asyncio.run(engine.close())


def test_what_cannot_be_connected_to_says_why(url: str, stand_in: StandIn, tokenizer: Tokenizer) -> None:
    """No server, one that wants a key, one of another tokenizer: each with the next step."""
    with pytest.raises(BackendError, match=r"no SGLang answers at http://127\.0\.0\.1:9"):
        SglangEngine.connect("http://127.0.0.1:9", tokenizer)
    with serving(StandIn(_improvise, tokenizer, api_key="k")) as guarded:
        with pytest.raises(UserError, match="/v1/models with 401: Unauthorized"):
            SglangEngine.connect(guarded, tokenizer)
        asyncio.run(SglangEngine.connect(guarded, tokenizer, api_key="k").close())
    stand_in.read_as = lambda text: tokenizer.encode(text[1:])
    with pytest.raises(UserError, match="tokenizer is not that of the folder"):
        SglangEngine.connect(url, tokenizer)


def test_a_stop_string_is_named(tokenizer: Tokenizer) -> None:
    """An answer that a stop string ends says which one."""
    with serving(StandIn(lambda _: "higher or lower", tokenizer)) as url:
        engine = SglangEngine.connect(url, tokenizer)
        sampled = asyncio.run(engine.generate(call(sampling=Sampling(stop=(" or",)))))
        asyncio.run(engine.close())
    assert (sampled.stop_reason, sampled.stop_string) == ("stop", " or")
    assert engine.context_length == CONTEXT


def test_an_answer_that_breaks_off_is_an_error(tokenizer: Tokenizer) -> None:
    """A server that fails in the middle of a stream is a BackendError with its message."""
    with serving(StandIn(iter(()), tokenizer)) as url:
        engine = SglangEngine.connect(url, tokenizer)
        with pytest.raises(BackendError, match="the script has 0 answers"):
            asyncio.run(engine.generate(call()))
        asyncio.run(engine.close())


def test_the_record_is_of_the_version_that_is_asked_for() -> None:
    """The classes that requests are held to are those of the oldest version that is taken."""
    assert tuple(int(part) for part in RECORD["version"].split(".")) == VERSION
