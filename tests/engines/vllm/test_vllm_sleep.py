"""A vLLM on the trainer's card: when it sleeps, what it is told and in which order, and what of its calls stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from ludus.engines.base import Engine
from ludus.engines.routed.engine import RoutedEngine
from ludus.engines.vllm.delivery import vllm_delivery
from ludus.engines.vllm.engine import VllmEngine
from ludus.engines.vllm.settings import VllmSettings
from ludus.engines.weights import WeightFiles
from ludus.errors import BackendError
from ludus.loop.step import trainers_turn
from ludus.text.tokenizer import Tokenizer
from ludus.types import Sampled, TokenChunk
from tests.engines.contract import CHECKS, SAMPLING, NoNewWeights, call, check_grammar
from tests.engines.vllm.vllm_server import SIZES, StandIn, Tensors

FALLS_ASLEEP = ["/pause?mode=keep", "/sleep?level=1&mode=keep"]
WEIGHTS_WAKE, PAGES_WAKE = "/wake_up?tags=weights", "/wake_up?tags=kv_cache"
UPDATE = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
ADAPTED = ["/start_weight_update", "/finish_weight_update"]


def connect(url: str, tokenizer: Tokenizer, files: WeightFiles) -> VllmEngine:
    return VllmEngine.connect(url, tokenizer, **vllm_delivery(VllmSettings(placement="shared"), files))


@asynccontextmanager
async def connected(url: str, tokenizer: Tokenizer, files: WeightFiles) -> AsyncIterator[VllmEngine]:
    engine = connect(url, tokenizer, files)
    assert engine.shares_card
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize(
    "check", [each for each in CHECKS if each is not check_grammar], ids=lambda each: each.__name__
)
def test_keeps_the_engine_contract(
    check: Callable[[Callable[[], Engine]], None], url: str, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """Whoever sleeps through each pause and publish is an engine as any other."""
    check(lambda: connect(url, tokenizer, files))


@pytest.mark.parametrize("is_adapter", [False, True], ids=["whole", "adapter"])
def test_a_turn_of_the_trainer(
    is_adapter: bool, url: str, stand_in: StandIn, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Paused, asleep, weights awake, handed over, pages awake, resumed: the trainer has the card for itself, and there
    are no pages while new weights are on their way."""
    files = WeightFiles(tmp_path / "weights", adapter_config={"r": 2} if is_adapter else None)
    sizes = []

    async def scenario() -> None:
        async with connected(url, tokenizer, files) as engine:
            await engine.publish(0, Tensors())
            stand_in.order.clear()
            async with trainers_turn(engine):
                sizes.append(stand_in.card_size)
                await engine.publish(1, Tensors())
                sizes.append(stand_in.card_size)
            sizes.append(stand_in.card_size)
            assert set((await engine.generate(call())).versions) == {1}

    asyncio.run(scenario())
    update = ADAPTED if is_adapter else UPDATE
    assert stand_in.order == [*FALLS_ASLEEP, WEIGHTS_WAKE, *update, PAGES_WAKE, "/resume"]
    assert sizes == [0, SIZES["weights"], sum(SIZES.values())]


def test_a_turn_that_publishes_nothing_wakes_it_with_the_weights_it_had(
    url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """Also one that fails, whose own error is raised."""

    async def scenario() -> None:
        async with connected(url, tokenizer, files) as engine:
            await engine.publish(0, Tensors())
            for number in range(2):
                stand_in.order.clear()
                try:
                    async with trainers_turn(engine):
                        if number:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    assert number
                assert stand_in.order == [*FALLS_ASLEEP, WEIGHTS_WAKE, PAGES_WAKE, "/resume"]
                assert set((await engine.generate(call(f"call {number}"))).versions) == {0}

    asyncio.run(scenario())


def test_a_failed_publish_leaves_nobody_asleep(
    url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """Whichever part of the way failed; the publish may be repeated."""

    async def scenario() -> None:
        async with connected(url, tokenizer, files) as engine:
            await engine.publish(0, Tensors())
            for version, path in enumerate(("/sleep", "/wake_up", "/update_weights"), start=1):
                stand_in.fails_once = {path}
                with pytest.raises(BackendError, match=r"out of luck|an update is active"):
                    await engine.publish(version, Tensors())
                assert stand_in.card_size == sum(SIZES.values())
                await engine.publish(version, Tensors())
                assert set((await engine.generate(call(f"call {version}"))).versions) == {version}

    asyncio.run(scenario())


async def _across(engine: Engine, asked_s: float | None, sleep_s: float) -> Sampled:
    """A call that has begun when the trainer's turn begins. asked_s: how much time it is given."""
    has_begun = asyncio.Event()

    def hear(chunk: TokenChunk) -> None:
        has_begun.set()

    deadline_at = None if asked_s is None else time.monotonic() + asked_s
    asked = replace(call(sampling=replace(SAMPLING, max_new_tokens=24)), deadline_at=deadline_at)
    running = asyncio.create_task(engine.generate(asked, hear))
    await has_begun.wait()
    async with trainers_turn(engine):
        await asyncio.sleep(sleep_s)
        await engine.publish(1, NoNewWeights())
    return await running


async def _has_running(engine: Engine, num: int) -> None:
    while engine.stats().num_running < num:  # noqa: ASYNC110  (it tells nobody)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_routed", [False, True], ids=["one", "routed"])
def test_calls_wait_and_lose_nothing(
    is_routed: bool, url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """A call in flight goes on with all its tokens, the later ones of the new weights; its time has not run out
    meanwhile, though the turn was longer than all that it was given."""
    stand_in.engine._token_delay_s = 0.01  # or it would have ended before the pause

    async def scenario() -> Sampled:
        async with connected(url, tokenizer, files) as server:
            engine: Engine = RoutedEngine([server], stop_ids=tokenizer.stop_ids) if is_routed else server
            await engine.publish(0, NoNewWeights())
            return await _across(engine, asked_s=2.0, sleep_s=2.2)

    sampled = asyncio.run(scenario())
    assert (sampled.stop_reason, len(sampled.token_ids)) == ("length", 24)
    assert list(sampled.versions) == sorted(sampled.versions) and set(sampled.versions) == {0, 1}


def test_time_goes_on_where_it_stopped(url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles) -> None:
    """What is left of a call's time is left of it after the turn; the same of one that comes meanwhile."""
    stand_in.engine._token_delay_s = 30.0  # no token comes in time

    async def scenario() -> None:
        async with connected(url, tokenizer, files) as engine:
            began_at = time.monotonic()
            early = asyncio.create_task(engine.generate(replace(call("early"), deadline_at=began_at + 0.5)))
            await _has_running(engine, 1)
            async with trainers_turn(engine):
                in_turn = replace(call("late"), deadline_at=time.monotonic() + 0.5)
                late = asyncio.create_task(engine.generate(in_turn))
                await asyncio.sleep(1.0)
                assert not early.done() and not late.done()
            for running in (early, late):
                assert (await running).stop_reason == "abort"
            assert time.monotonic() - began_at >= 1.5

    asyncio.run(scenario())


def test_who_is_aborted_meanwhile_ends_at_once(
    url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """A sleeping server keeps no call that nobody wants, and closing the engine ends them all."""
    stand_in.engine._token_delay_s = 30.0

    async def scenario() -> None:
        async with connected(url, tokenizer, files) as engine:
            running = [asyncio.create_task(engine.generate(call(name))) for name in ("one", "other")]
            await _has_running(engine, 2)
            async with trainers_turn(engine):
                await engine.abort("one")
                assert (await running[0]).stop_reason == "abort"
                await engine.close()
                assert (await running[1]).stop_reason == "abort"
                with pytest.raises(BackendError, match="is closed"):
                    await engine.generate(call())
                raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(scenario())


def test_a_sleeping_server_is_well(url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles) -> None:
    """It is asked whether it lives and not for its weights, which it may not tell for as long as it copies them; nobody
    takes it for lost."""

    async def scenario() -> None:
        async with connected(url, tokenizer, files) as server:
            engine = RoutedEngine([server], stop_ids=tokenizer.stop_ids)
            await engine.publish(0, Tensors())
            async with trainers_turn(engine):
                stand_in.hangs_at = "/weight_info"
                for _ in range(4):
                    assert await engine.check_replicas(timeout_s=1.0) == set()
                assert engine._replicas[0].is_up and engine._replicas[0].num_silent == 0
                stand_in.hangs_at = ""
            assert (await engine.generate(call())).token_ids
            assert engine.num_moved == 0 and server.stats().version == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("woken", [(), ("weights",)], ids=["asleep", "half awake"])
def test_a_server_that_a_killed_run_left_asleep_is_woken(
    woken: tuple[str, ...], url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """Who connects next gets answers, whatever of it was awake; its weights are then published as to any other."""

    async def killed() -> None:
        engine = connect(url, tokenizer, files)
        await engine.publish(0, Tensors())
        await engine.pause()
        await engine.close()

    async def next_one() -> None:
        async with connected(url, tokenizer, files) as engine:
            assert stand_in.card_size == sum(SIZES.values())
            assert engine.stats().version < 0
            await engine.publish(7, Tensors())
            assert set((await engine.generate(call())).versions) == {7}

    asyncio.run(killed())
    for part in woken:
        assert httpx.post(f"{url}/wake_up?tags={part}").is_success
    assert stand_in.card_size < sum(SIZES.values())
    asyncio.run(next_one())


def test_a_server_that_was_left_paused_goes_on(
    url: str, stand_in: StandIn, tokenizer: Tokenizer, files: WeightFiles
) -> None:
    """The same of a run that was killed while it published to a server on a card of its own."""

    async def scenario() -> None:
        killed = VllmEngine.connect(url, tokenizer, **vllm_delivery(VllmSettings(), files))
        assert not killed.shares_card
        await killed.pause()
        await killed.close()
        engine = VllmEngine.connect(url, tokenizer, **vllm_delivery(VllmSettings(), files))
        assert (await engine.generate(call())).token_ids
        await engine.close()

    asyncio.run(scenario())
