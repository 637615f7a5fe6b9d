"""A vLLM server as an engine: the engine contract over its wire, and what it cannot be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ludus.engines.base import Engine
from ludus.engines.vllm.engine import UNPUBLISHED, VllmEngine
from ludus.engines.vllm.weights import AdapterTransfer, FileTransfer
from ludus.engines.weights import WeightFiles
from ludus.errors import BackendError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Sampled, Sampling, TokenChunk
from tests.engines.contract import CHECKS, GRAMMAR, LONG, SAMPLING, NoNewWeights, call
from tests.engines.vllm.vllm_server import CONTEXT, MODEL, NUM_CACHED, StandIn, Tensors, improvise, serving


def _linked(folder: Path) -> str:
    """The name of what the one link in a folder leads to, which is an adapter."""
    (link,) = (path for path in folder.iterdir() if path.is_symlink())
    assert (link / "adapter_config.json").is_file()
    return link.readlink().name


def _all_linked(folder: Path) -> set[str]:
    """The names of what the links in a folder lead to, of those that lead anywhere."""
    return {link.readlink().name for link in folder.iterdir() if link.is_symlink() and link.exists()}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_engine_contract(
    check: Callable[[Callable[[], Engine]], None], url: str, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """Every point of the contract holds over HTTP."""
    check(lambda: VllmEngine.connect(url, tokenizer, transfer=FileTransfer(files)))


def test_weights_travel_by_a_file(url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles) -> None:
    """vLLM is given the folder once and the file of each version; the next calls share no keys with those before."""

    async def scenario() -> None:
        engine = VllmEngine.connect(url, tokenizer, transfer=FileTransfer(files), keep_kv=False)
        source = Tensors()
        for version in (0, 1):
            await engine.publish(version, source)
            await engine.generate(call())
        await engine.close()
        assert source.num_copied == 2

    asyncio.run(scenario())
    salts = [asked["cache_salt"] for asked in stand_in.asked if "cache_salt" in asked]
    begun, *updates = stand_in.loaded
    assert begun == ("/init_weight_transfer_engine", {"init_info": {"folder": str(files.folder)}})
    assert updates == [
        step
        for version, salt in enumerate(salts)
        for step in (
            ("/start_weight_update", None),
            ("/update_weights", {"update_info": {"file": f"v{version}.safetensors"}}),
            ("/finish_weight_update", {"weight_version": salt}),
            ("/reset_prefix_cache", None),
        )
    ]
    assert salts[0] != salts[1]


def test_an_adapter_keeps_its_name_and_changes_its_files(
    url: str, stand_in: StandIn, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """vLLM loads it once, by a link that leads to the newest version; an update without weights makes it read again."""
    files = WeightFiles(tmp_path, adapter_config={"r": 2})

    async def scenario() -> list[str]:
        engine = VllmEngine.connect(url, tokenizer, transfer=AdapterTransfer(files))
        read = []
        for version in (0, 1):
            await engine.publish(version, Tensors())
            read.append(_linked(tmp_path))
            await engine.generate(call())
        await engine.close()
        return read

    assert asyncio.run(scenario()) == ["v0", "v1"]
    ((_, loaded),) = (each for each in stand_in.loaded if each[0] == "/v1/load_lora_adapter")
    assert Path(loaded["lora_path"]).is_symlink()
    assert [asked["model"] for asked in stand_in.asked[-2:]] == [loaded["lora_name"]] * 2
    assert not any(path == "/update_weights" for path, _ in stand_in.loaded)


def test_an_adapter_stays_for_who_gets_the_next_one_later(url: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Of two servers on one folder the second still reads its version while the first has the next one."""
    files = WeightFiles(tmp_path, adapter_config={"r": 2})

    async def scenario() -> None:
        engines = [VllmEngine.connect(url, tokenizer, transfer=AdapterTransfer(files)) for _ in range(2)]
        for engine in engines:
            await engine.publish(0, Tensors())
        await engines[0].publish(1, Tensors())
        assert _all_linked(tmp_path) == {"v0", "v1"}
        for engine in engines:
            await engine.close()

    asyncio.run(scenario())


def test_versions_of_another_run_are_not_taken_for_ours(url: str, tokenizer: Tokenizer, files: WeightFiles) -> None:
    """Until something is published, tokens say that their weights are unknown, whatever the server got before."""

    async def scenario() -> None:
        before = VllmEngine.connect(url, tokenizer, transfer=FileTransfer(files))
        await before.publish(7, Tensors())
        after = VllmEngine.connect(url, tokenizer, transfer=FileTransfer(files))
        assert set((await after.generate(call("first"))).versions) == {UNPUBLISHED} == {after.stats().version}
        await after.publish(0, Tensors())
        assert set((await after.generate(call("second"))).versions) == {0}
        await before.close()
        await after.close()

    asyncio.run(scenario())


def test_a_server_that_takes_no_weights_says_what_to_set(tokenizer: Tokenizer, files: WeightFiles) -> None:
    """vLLM serves the paths of weights in its development mode alone."""
    with serving(StandIn(improvise, tokenizer, dev_mode=False)) as url:
        engine = VllmEngine.connect(url, tokenizer, transfer=FileTransfer(files))
        with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1"):
            asyncio.run(engine.publish(0, Tensors()))
        asyncio.run(engine.close())


def test_weights_cannot_be_published(url: str, tokenizer: Tokenizer) -> None:
    """A publish is refused with what to do instead."""

    async def scenario() -> None:
        engine = VllmEngine.connect(url, tokenizer)
        with pytest.raises(UserError, match=r"its weights are its own; train with"):
            await engine.publish(1, NoNewWeights())
        await engine.close()

    asyncio.run(scenario())


def test_says_what_it_is_connected_to(url: str, tokenizer: Tokenizer) -> None:
    """Model and context are the server's; a URL that ends in /v1 is taken too."""
    engine = VllmEngine.connect(f"{url}/v1", tokenizer)
    assert (engine.context_length, engine.protocol.model) == (CONTEXT, MODEL)
    assert repr(engine) == f"VllmEngine({url}, version=0, running=0)"
    asyncio.run(engine.close())


def test_every_option_reaches_the_server(url: str, stand_in: StandIn, tokenizer: Tokenizer) -> None:
    """What is asked of the engine is asked of vLLM, and what it would end by itself is sent to it in full."""
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
    engine = VllmEngine.connect(url, tokenizer)
    sampled = asyncio.run(engine.generate(call(sampling=sampling)))
    asyncio.run(engine.close())
    asked = stand_in.asked[-1]
    assert (asked["model"], asked["request_id"], asked["token_ids"]) == (MODEL, "call", list(call().prompt_ids))
    assert asked["sampling_params"] == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 11,
        "max_tokens": 5,
        "logprobs": 0,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.1,
        "stop": ["zebra"],
        "stop_token_ids": sorted({9, *tokenizer.stop_ids}),
        "ignore_eos": True,
        "detokenize": True,
        "logit_bias": {"4": 2.0},
        "structured_outputs": {"grammar": GRAMMAR},
    }
    assert sampled.num_cached_tokens == NUM_CACHED
    assert sampled.kept_ids == tuple((token, token + 1, token + 2) for token in sampled.token_ids)


def test_tokens_come_together(url: str, stand_in: StandIn, tokenizer: Tokenizer) -> None:
    """The first at once, then as many as was asked for; without it nothing is asked for, and each comes by itself."""

    async def sizes(stream_interval: int) -> list[int]:
        engine = VllmEngine.connect(url, tokenizer, stream_interval=stream_interval)
        chunks: list[TokenChunk] = []
        await engine.generate(call(sampling=replace(SAMPLING, max_new_tokens=10)), chunks.append)
        await engine.close()
        return [len(chunk.token_ids) for chunk in chunks]

    assert asyncio.run(sizes(4)) == [1, 4, 4, 1]
    assert stand_in.asked[-1]["sampling_params"]["stream_interval"] == 4
    assert asyncio.run(sizes(1)) == [1] * 10
    assert "stream_interval" not in stand_in.asked[-1]["sampling_params"]


def test_tokens_that_waited_at_the_server_are_of_the_weights_before(
    url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """Of an answer that is cut off nobody says which weights sampled what came with the first tokens of the next
    version: none is taken for newer than it is."""
    stand_in.engine._token_delay_s = 0.02

    async def scenario() -> Sampled:
        engine = VllmEngine.connect(url, tokenizer, transfer=FileTransfer(files), stream_interval=4)
        await engine.publish(0, Tensors())
        chunks: asyncio.Queue[TokenChunk] = asyncio.Queue()
        running = asyncio.create_task(engine.generate(call(sampling=LONG), chunks.put_nowait))
        for _ in range(2):
            await chunks.get()
        await asyncio.sleep(0.03)  # some wait there now
        await engine.publish(1, Tensors())
        for _ in range(2):
            await chunks.get()
        await engine.abort("call")
        sampled = await running
        await engine.close()
        return sampled

    sampled = asyncio.run(scenario())
    assert sampled.stop_reason == "abort"
    assert sampled.versions[:13] == (0,) * 9 + (1,) * 4


def test_logprobs_of_the_bare_model_are_not_taken_for_others(tokenizer: Tokenizer) -> None:
    """A server that reports raw logprobs serves temperature 1 and 0; what would be recorded wrongly is refused."""
    with serving(StandIn(improvise, tokenizer, processed=False)) as url:
        engine = VllmEngine.connect(url, tokenizer)
        for temperature in (1.0, 0.0):
            assert asyncio.run(engine.generate(call(sampling=replace(SAMPLING, temperature=temperature)))).token_ids
        for changed in (Sampling(temperature=0.7), Sampling(top_p=0.9), Sampling(logit_bias=((3, 1.0),))):
            with pytest.raises(UserError, match="--logprobs-mode processed_logprobs"):
                asyncio.run(engine.generate(call(sampling=changed)))
        asyncio.run(engine.close())


def test_kept_ids_that_are_not_told_are_unknown(url: str, tokenizer: Tokenizer) -> None:
    """Without vLLM's masks a narrowed distribution is recorded as such, token by token, and a whole one as whole."""
    engine = VllmEngine.connect(url, tokenizer)
    narrowed = asyncio.run(engine.generate(call(sampling=replace(SAMPLING, top_p=0.5))))
    whole = asyncio.run(engine.generate(call()))
    asyncio.run(engine.close())
    assert narrowed.kept_ids == (None,) * len(narrowed.token_ids) and whole.kept_ids == ()


def test_a_temperature_that_vllm_changes_is_refused(url: str, tokenizer: Tokenizer) -> None:
    """vLLM would raise it silently."""
    engine = VllmEngine.connect(url, tokenizer)
    with pytest.raises(UserError, match=r"temperature=0.001 is raised to 0.01"):
        asyncio.run(engine.generate(call(sampling=Sampling(temperature=0.001))))
    asyncio.run(engine.close())


def test_a_stop_string_is_named(tokenizer: Tokenizer) -> None:
    """An answer that a stop string ends says which one, as other engines do."""
    with serving(StandIn(lambda _: "higher or lower", tokenizer)) as url:
        engine = VllmEngine.connect(url, tokenizer)
        sampled = asyncio.run(engine.generate(call(sampling=Sampling(stop=(" or",)))))
        asyncio.run(engine.close())
    assert (sampled.stop_reason, sampled.stop_string) == ("stop", " or")
    assert tokenizer.decode(sampled.token_ids) == "higher or"


def test_what_cannot_be_connected_to_says_why(tokenizer: Tokenizer) -> None:
    """No server, one without the interface, one that wants a key, one of another tokenizer: each with the next step."""
    with pytest.raises(BackendError, match=r"no vLLM answers at http://127\.0\.0\.1:9"):
        VllmEngine.connect("http://127.0.0.1:9", tokenizer)
    with serving(StandIn(improvise, tokenizer, scale_out=False)) as url, pytest.raises(UserError, match="scale-out"):
        VllmEngine.connect(url, tokenizer)
    with serving(StandIn(improvise, tokenizer, api_key="k")) as url:
        with pytest.raises(UserError, match="/v1/models with 401"):
            VllmEngine.connect(url, tokenizer)
        asyncio.run(VllmEngine.connect(url, tokenizer, api_key="k").close())


def test_an_old_vllm_is_refused_and_a_new_one_noted(
    url: str, stand_in: StandIn, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """The interface of older ones is another; whether newer ones have kept it was not tried."""
    stand_in.version = "0.9.2.post2"
    with pytest.raises(UserError, match=r"this is vLLM 0.9.2.post2; Ludus works with 0.31 and newer"):
        VllmEngine.connect(url, tokenizer)
    stand_in.version = "1.0.0rc1"
    asyncio.run(VllmEngine.connect(url, tokenizer).close())
    assert "vllm.untested version=1.0.0rc1" in caplog.text


def test_another_tokenizer_is_noticed(url: str, stand_in: StandIn, tokenizer: Tokenizer) -> None:
    """Token ids that mean something else there must not be recorded."""
    stand_in.read_as = lambda text: tokenizer.encode(text[1:])
    with pytest.raises(UserError, match="tokenizer is not that of the folder"):
        VllmEngine.connect(url, tokenizer)


def test_a_server_without_pause_says_so(tokenizer: Tokenizer) -> None:
    """vLLM pauses in its development mode alone."""
    with serving(StandIn(improvise, tokenizer, dev_mode=False)) as url:
        engine = VllmEngine.connect(url, tokenizer)
        with pytest.raises(UserError, match="VLLM_SERVER_DEV_MODE=1"):
            asyncio.run(engine.pause())
        asyncio.run(engine.close())


def test_an_answer_that_breaks_off_is_an_error(tokenizer: Tokenizer) -> None:
    """A server that fails in the middle of a stream is a BackendError with its message."""
    with serving(StandIn(iter(()), tokenizer)) as url:
        engine = VllmEngine.connect(url, tokenizer)
        with pytest.raises(BackendError, match="the script has 0 answers"):
            asyncio.run(engine.generate(call()))
        asyncio.run(engine.close())
