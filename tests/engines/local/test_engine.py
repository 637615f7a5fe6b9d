"""The local engine on its thread: the engine contract, then what only an engine with weights can show."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ludus.engines.base import Engine
from ludus.engines.lease import ComputeLease
from ludus.engines.local.engine import LocalEngine
from ludus.engines.local.settings import InferenceSettings
from ludus.engines.routed.engine import RoutedEngine
from ludus.errors import BackendError, UserError
from ludus.models.load import LoadedModel, load_model
from ludus.models.settings import ModelSettings
from ludus.text.tokenizer import Tokenizer
from ludus.types import TokenChunk
from tests.engines.contract import CHECKS, LONG, SAMPLING, NoNewWeights, call

MakeEngine = Callable[..., LocalEngine]


@pytest.fixture(scope="module")
def model(tiny_model_folder: Path) -> LoadedModel:
    return load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32"))


@pytest.fixture
def make_engine(model: LoadedModel, tokenizer_folder: Path) -> MakeEngine:
    tokenizer = Tokenizer.load(tokenizer_folder)

    def make(lease: ComputeLease | None = None, **settings: object) -> LocalEngine:
        chosen = InferenceSettings(**{"kv_bytes": 2**22, **settings})
        return LocalEngine(model, tokenizer, chosen, lease=lease or ComputeLease(), seed=3)

    return make


@contextmanager
def failing(model: LoadedModel) -> Iterator[None]:
    """Every forward pass fails meanwhile."""

    def fail(*_: object) -> None:
        raise RuntimeError("the machine is on fire")

    hook = model.module.base_model.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        hook.remove()


class Added:
    """Weights that differ from those in place by a constant."""

    def __init__(self, weight: torch.Tensor, amount: float, *, entered: Callable[[], None] = lambda: None) -> None:
        self._weight = weight
        self._amount = amount
        self._entered = entered

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        return ()

    def copy_into_shared(self) -> None:
        self._entered()
        with torch.no_grad():
            self._weight.add_(self._amount)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_engine_contract(check: Callable[[Callable[[], Engine]], None], make_engine: MakeEngine) -> None:
    """Our engine keeps every point of the contract."""
    check(make_engine)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_replicas_over_the_same_weights_keep_the_contract(
    check: Callable[[Callable[[], Engine]], None], make_engine: MakeEngine, tokenizer_folder: Path
) -> None:
    """Two engines that share weights and lease are, behind a router, one engine."""
    stop_ids = Tokenizer.load(tokenizer_folder).stop_ids

    def make() -> Engine:
        lease = ComputeLease()
        return RoutedEngine([make_engine(lease), make_engine(lease)], stop_ids=stop_ids)

    check(make)


def test_a_failed_step_fails_its_calls_and_the_next_ones_are_served(
    make_engine: MakeEngine, model: LoadedModel
) -> None:
    """Every caller of a failed step gets a BackendError that says why; the engine goes on."""

    async def scenario() -> None:
        engine = make_engine()
        whole = await engine.generate(call("whole"))
        with failing(model):
            results = await asyncio.gather(
                *(engine.generate(call(f"call-{idx}")) for idx in range(3)), return_exceptions=True
            )
        assert all(isinstance(result, BackendError) and "on fire" in str(result) for result in results)
        assert (await engine.generate(call("again"))).token_ids == whole.token_ids
        assert engine.stats().num_running == engine.stats().num_waiting == 0
        await engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("kernels", ["native", "eager"])
def test_weights_that_are_no_numbers_are_noticed(kernels: str, make_engine: MakeEngine, model: LoadedModel) -> None:
    """Nobody gets a token that was drawn from NaN; once the weights are sound again, calls are served."""

    async def scenario() -> None:
        engine = make_engine(kernels=kernels)
        kept = model.head_weight.detach().clone()
        with torch.no_grad():
            model.head_weight.fill_(torch.nan)
        try:
            with pytest.raises(BackendError, match="NaN"):
                await engine.generate(call("damaged"))
        finally:
            with torch.no_grad():
                model.head_weight.copy_(kept)
        assert (await engine.generate(call("sound"))).token_ids
        await engine.close()

    asyncio.run(scenario())


def test_aborts_deadlines_and_closing_wait_for_nobody_who_computes(make_engine: MakeEngine) -> None:
    """While a trainer holds the lease for long, a call is aborted, another runs out of time, and the rest is closed."""

    async def scenario() -> None:
        lease = ComputeLease()
        engine = make_engine(lease)
        with lease.hold("trainer"):
            waiting = {name: asyncio.create_task(engine.generate(call(name))) for name in ("aborted", "closed")}
            soon = replace(call("late"), deadline_at=time.monotonic() + 0.05)
            waiting["late"] = asyncio.create_task(engine.generate(soon))
            await asyncio.sleep(0)  # all three are asked for
            await engine.abort("aborted")
            assert (await waiting["aborted"]).stop_reason == "abort"
            assert (await waiting["late"]).stop_reason == "abort"
            closing = asyncio.create_task(engine.close())
            assert (await waiting["closed"]).stop_reason == "abort"
        await closing

    asyncio.run(asyncio.wait_for(scenario(), timeout=60))


def test_a_failing_listener_fails_its_own_call_alone(make_engine: MakeEngine) -> None:
    """What `on_tokens` raises comes out of that `generate`; its call is aborted, the others finish."""

    def refuse(chunk: TokenChunk) -> None:
        raise KeyError("listener")

    async def scenario() -> None:
        engine = make_engine()
        other = asyncio.create_task(engine.generate(call("other", sampling=LONG)))
        with pytest.raises(KeyError, match="listener"):
            await engine.generate(call("mine"), refuse)
        assert len((await other).token_ids) == LONG.max_new_tokens
        await engine.close()

    asyncio.run(scenario())


def test_published_weights_sample_from_the_next_token_on(make_engine: MakeEngine, model: LoadedModel) -> None:
    """After a publish the same call draws from the new weights, whose logprobs `score` confirms; then back again."""

    async def scenario() -> None:
        engine = make_engine()
        weight = model.module.base_model.layers[0].mlp.down_proj.weight
        before = await engine.generate(call("before"))
        await engine.publish(1, Added(weight, 0.5))
        changed = await engine.generate(call("changed"))
        scored = await engine.score((*call().prompt_ids, *changed.token_ids))
        await engine.publish(2, Added(weight, -0.5))
        after = await engine.generate(call("after"))
        await engine.close()
        assert changed.token_ids != before.token_ids
        assert changed.logprobs == pytest.approx(scored[len(call().prompt_ids) - 1 :], abs=1e-4)
        assert changed.num_cached_tokens == 0
        assert after.token_ids == before.token_ids

    asyncio.run(scenario())


def test_a_publish_that_fails_ends_the_engine(make_engine: MakeEngine, model: LoadedModel) -> None:
    """Half-written weights are never sampled from: the publish fails, and so does every call from then on."""

    def fail() -> None:
        raise OSError("disk gone")

    async def scenario() -> None:
        engine = make_engine()
        with pytest.raises(BackendError, match="disk gone"):
            await engine.publish(1, Added(model.head_weight, 0.0, entered=fail))
        with pytest.raises(BackendError, match="half-way"):
            await engine.generate(call())
        for asked in (engine.check(), engine.wait_ended()):
            with pytest.raises(BackendError, match="half-way"):
                await asked
        await engine.close()

    asyncio.run(scenario())


def test_an_abort_ends_a_call_whose_grammar_is_being_compiled(make_engine: MakeEngine) -> None:
    """It has not reached the engine yet, and ends as soon as it does."""

    async def scenario() -> None:
        engine = make_engine()
        sampling = replace(LONG, grammar='start: "a"{400}')
        running = asyncio.create_task(engine.generate(call(sampling=sampling)))
        await asyncio.sleep(0)
        await engine.abort(call().id)
        assert (await running).stop_reason == "abort"
        await engine.close()

    asyncio.run(scenario())


def test_a_health_check_waits_for_no_step(make_engine: MakeEngine) -> None:
    """An engine whose step takes long is not taken for one that hangs."""

    async def scenario() -> None:
        lease = ComputeLease()
        engine = make_engine(lease)
        with lease.hold("trainer"):
            running = asyncio.create_task(engine.generate(call()))
            await asyncio.sleep(0)
            await asyncio.wait_for(engine.check(), 5)
        await running
        await engine.close()

    asyncio.run(scenario())


def test_steps_and_publishes_hold_the_lease_and_an_idle_engine_does_not(
    make_engine: MakeEngine, model: LoadedModel
) -> None:
    """While somebody else holds the lease nothing is sampled; weights are copied under it; idle it is free."""
    lease = ComputeLease()

    async def scenario() -> None:
        engine = make_engine(lease)
        await engine.generate(call("first"))
        with lease.hold("trainer"):
            running = asyncio.create_task(engine.generate(call("second")))
            await asyncio.wait({running}, timeout=0.05)  # time in which a token could come
            assert not running.done() and engine.stats().num_sampled_tokens == SAMPLING.max_new_tokens
        await running
        holders: list[str] = []
        await engine.publish(1, Added(model.head_weight, 0.0, entered=lambda: holders.append(repr(lease))))
        assert "'engine'" in holders[0]
        await engine.close()

    asyncio.run(scenario())


def test_a_closed_engine_refuses_calls_and_ends_its_thread(make_engine: MakeEngine) -> None:
    """After `close` every request gets a BackendError; the thread is gone, the counters stay."""

    async def scenario() -> None:
        num_threads = threading.active_count()
        engine = make_engine()
        await engine.generate(call())
        await asyncio.gather(engine.close(), engine.close())
        for request in (engine.generate(call()), engine.pause(), engine.score((3, 4)), engine.abort("call")):
            with pytest.raises(BackendError, match="closed"):
                await request
        assert engine.stats().num_calls == 1
        assert sum(thread.name == "ludus-engine" for thread in threading.enumerate()) == 0
        assert threading.active_count() >= num_threads

    asyncio.run(scenario())


def test_a_call_that_cannot_be_served_never_reaches_the_engine(make_engine: MakeEngine) -> None:
    """A bad call raises UserError at once; an id that is running already is refused without harm to the first."""

    async def scenario() -> None:
        engine = make_engine()
        with pytest.raises(UserError, match="vocabulary"):
            await engine.generate(call(prompt_ids=[10**6]))
        with pytest.raises(UserError, match="empty"):
            await engine.score(())
        began = asyncio.Event()
        first = asyncio.create_task(engine.generate(call(sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        await engine.pause()
        second = asyncio.create_task(engine.generate(call(sampling=LONG)))
        with pytest.raises(UserError, match="running already"):
            await second
        await engine.resume()
        assert len((await first).token_ids) == LONG.max_new_tokens
        await engine.close()

    asyncio.run(scenario())


def test_a_deadline_ends_a_call_while_the_engine_pauses(make_engine: MakeEngine) -> None:
    """Nothing else has to happen for a deadline to be kept."""

    async def scenario() -> None:
        engine = make_engine()
        await engine.pause()
        sampled = await engine.generate(replace(call(), deadline_at=time.monotonic() + 0.02))
        assert (sampled.stop_reason, sampled.token_ids) == ("abort", ())
        await engine.close()

    asyncio.run(scenario())


def test_a_loop_that_is_gone_does_not_hold_up_the_others(make_engine: MakeEngine) -> None:
    """Calls whose event loop was closed under them are dropped."""
    engine = make_engine()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a task is abandoned on purpose
    task = loop.create_task(engine.generate(call("lost", sampling=LONG)))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    async def scenario() -> None:
        sampled = await engine.generate(call("other"))
        assert sampled.token_ids
        while engine.stats().num_running:
            await engine.abort("none")  # returns after the next step
        await engine.close()

    asyncio.run(scenario())
    del task


def test_a_storm_of_calls_aborts_cancels_pauses_and_publishes_leaves_nothing_behind(make_engine: MakeEngine) -> None:
    """Whatever happens to forty calls in an engine short of pages, each one ends, and every page is free again."""
    rng = random.Random(4)

    async def one(engine: LocalEngine, number: int) -> None:
        sampling = replace(LONG, seed=number, max_new_tokens=rng.randint(1, 60))
        prompt = [rng.randrange(3, 6) for _ in range(rng.randint(1, 80))]
        task = asyncio.create_task(engine.generate(call(f"call-{number}", sampling=sampling, prompt_ids=prompt)))
        fate = rng.choice(("finish", "finish", "abort", "cancel"))
        if fate != "finish":
            await asyncio.wait({task}, timeout=rng.random() * 0.1)
        if fate == "abort":
            await engine.abort(f"call-{number}")
        elif fate == "cancel":
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert not isinstance(result, Exception), result

    async def disturb(engine: LocalEngine) -> None:
        for version in range(1, 5):
            await engine.pause()
            await engine.publish(version, NoNewWeights())
            await engine.resume()

    async def scenario() -> None:
        engine = make_engine(max_batch_tokens=50, kv_bytes=24 * 8192)
        await asyncio.gather(disturb(engine), *(one(engine, number) for number in range(40)))
        await engine.abort("none")  # returns after all that was asked before it
        stats = engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_calls) == (0, 0, 40)
        assert stats.num_free_pages == stats.num_pages == 24
        await engine.close()

    asyncio.run(scenario())


def test_the_engines_thread_computes_on_the_models_card(
    make_engine: MakeEngine, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so itself, before its first step: a thread begins with the first card, whatever its model is on."""
    said: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(
        "ludus.engines.local.engine.use_device",
        lambda device: said.append((threading.current_thread().name, device)),
    )

    async def main() -> None:
        engine = make_engine()
        await engine.generate(call())
        await engine.close()

    asyncio.run(main())
    assert said == [("ludus-engine", model.head_weight.device)]
