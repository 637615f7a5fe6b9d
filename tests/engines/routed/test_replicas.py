"""New weights reach replicas one after the other, or all at once if they share them; who joins gets the newest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.engines.base import OnTokens, WeightSource
from ludus.engines.routed.engine import RoutedEngine
from ludus.engines.routed.replicas import MOST_SILENT, MOST_SILENT_TAKING_WEIGHTS, Replica, Replicas
from ludus.engines.scripted import ScriptedEngine
from ludus.errors import BackendError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled
from tests.engines.contract import LONG, NoNewWeights, call


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


class Server(ScriptedEngine):
    """A replica that tells who takes weights with it at the same time, and may hang or refuse."""

    taking: set[Server]
    most_taking = 0
    is_sharing = False
    error: Exception | None = None
    """What publish and health checks raise. None: all is well."""
    hangs = False

    @property
    def shares_weights(self) -> bool:
        return self.is_sharing

    async def publish(self, version: int, weights: WeightSource) -> None:
        if self.error is not None:
            raise self.error
        self.taking.add(self)
        await asyncio.sleep(0)
        type(self).most_taking = max(type(self).most_taking, len(self.taking))
        self.taking.discard(self)
        await super().publish(version, weights)

    async def check(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        if isinstance(self.error, BackendError):
            raise self.error
        return await super().generate(call, on_tokens)


class Weights:
    """Counts how often it was copied."""

    num_copies = 0

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        return ()

    def copy_into_shared(self) -> None:
        self.num_copies += 1


def servers(tokenizer: Tokenizer, number: int, *, delay_s: float = 0.0) -> list[Server]:
    made = [Server(lambda asked: [9] * 40, tokenizer, token_delay_s=delay_s) for _ in range(number)]
    for server in made:
        server.taking = Server.taking
    return made


@pytest.fixture(autouse=True)
def nobody_takes() -> None:
    Server.taking, Server.most_taking = set(), 0


def routed(replicas: list[Server], tokenizer: Tokenizer, **options: Any) -> RoutedEngine:
    return RoutedEngine(replicas, stop_ids=tokenizer.stop_ids, **options)


@pytest.mark.parametrize(("number", "most"), [(1, 1), (2, 1), (3, 1), (8, 2), (40, 10)])
def test_replicas_with_weights_of_their_own_take_turns(number: int, most: int, tokenizer: Tokenizer) -> None:
    """Of several at least half go on sampling while a publish runs; of many, three quarters."""

    async def scenario() -> None:
        router = routed(servers(tokenizer, number), tokenizer)
        await router.publish(1, NoNewWeights())
        assert Server.most_taking == most
        assert set((await router.generate(call())).versions) == {1}

    asyncio.run(scenario())


def test_replicas_that_share_weights_change_together(tokenizer: Tokenizer) -> None:
    """They come first and all at once; others take turns after them."""
    made = servers(tokenizer, 5)
    for number, server in enumerate(made):
        server.is_sharing = number in (1, 3)
    assert Replicas(made, is_patient=False).publish_batches() == [(1, 3), (0,), (2,), (4,)]


def test_calls_keep_away_from_a_replica_that_takes_weights(tokenizer: Tokenizer) -> None:
    """While one of two takes weights, new calls go to the other, with the version that it has then."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2)
        router = routed([first, second], tokenizer)
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def slow(version: int, weights: WeightSource) -> None:
            entered.set()
            await go_on.wait()
            await ScriptedEngine.publish(first, version, weights)

        first.publish = slow  # type: ignore[method-assign]
        publishing = asyncio.create_task(router.publish(1, NoNewWeights()))
        await entered.wait()
        asked = [replace(call(f"{n}"), session_id=f"{n}") for n in range(3)]
        answers = [await router.generate(one) for one in asked]
        assert {version for answer in answers for version in answer.versions} == {0}
        assert len(second.calls) == 3 and not first.calls
        go_on.set()
        await publishing
        assert set((await router.generate(call("after"))).versions) == {1}

    asyncio.run(scenario())


def test_one_that_joins_gets_the_newest_weights_first(tokenizer: Tokenizer) -> None:
    """A replica with older weights serves at once, because it was given those of the last publish."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2)
        router = routed([first], tokenizer)
        await router.publish(3, NoNewWeights())
        await router.add(second)
        await router.remove(0)
        assert set((await router.generate(call())).versions) == {3}
        third = servers(tokenizer, 1)[0]
        third.error = BackendError("its server is gone")
        with pytest.raises(BackendError, match="server is gone"):
            await router.add(third)
        assert list(router.loads()) == [1]

    asyncio.run(scenario())


def test_a_joining_replica_and_a_publish_do_not_pass_each_other(tokenizer: Tokenizer) -> None:
    """Joins at the same time as publishes: whoever has joined has the version of the last publish."""

    async def scenario() -> None:
        router = routed(servers(tokenizer, 2), tokenizer)
        joins = [router.add(server) for server in servers(tokenizer, 4)]
        await asyncio.gather(router.publish(1, NoNewWeights()), *joins)
        asked = [replace(call(f"{n}"), session_id=f"{n}") for n in range(12)]
        answers = await asyncio.gather(*(router.generate(one) for one in asked))
        assert {version for answer in answers for version in answer.versions} == {1}
        assert len(router.loads()) == 6

    asyncio.run(scenario())


def test_weights_that_one_refuses_are_published_to_nobody_else(tokenizer: Tokenizer) -> None:
    """An engine that cannot take any weights ends the publish, and whatever was paused goes on."""

    async def scenario() -> None:
        replicas = servers(tokenizer, 2)
        replicas[0].error = UserError("weights are not published to me")
        router = routed(replicas, tokenizer)
        with pytest.raises(UserError, match="not published to me"):
            await router.publish(1, NoNewWeights())
        assert replicas[1].stats().version == 0
        assert (await router.generate(call())).token_ids

    asyncio.run(scenario())


def test_a_drained_replica_finishes_its_calls(tokenizer: Tokenizer) -> None:
    """It gets no more calls, keeps those it has until they end, and is returned without one moved."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2, delay_s=0.001)
        router, began = routed([first], tokenizer), asyncio.Event()
        running = asyncio.create_task(router.generate(call("long", sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        await router.add(second)
        draining = asyncio.create_task(router.drain(0))
        await asyncio.sleep(0)
        await router.generate(replace(call("next"), session_id=call().session_id))
        assert await draining is first and (await running).token_ids
        assert router.num_moved == 0 and len(first.calls) == len(second.calls) == 1

    asyncio.run(scenario())


def test_a_drain_that_takes_too_long_moves_the_rest(tokenizer: Tokenizer) -> None:
    """After its time what still runs goes on elsewhere, with its tokens."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2, delay_s=0.001)
        router, began = routed([first], tokenizer), asyncio.Event()
        running = asyncio.create_task(router.generate(call(sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        await first.pause()  # it would never end
        await router.add(second)
        await router.drain(0, timeout_s=0.01)
        assert len((await running).token_ids) == LONG.max_new_tokens and router.num_moved == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_what_runs_at_an_unwell_replica_goes_on_elsewhere(how: str, tokenizer: Tokenizer) -> None:
    """A health check that fails or is not answered moves calls away from a server that says nothing any more; when
    it is well again it serves again."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2, delay_s=0.001)
        router, began = routed([first, second], tokenizer), asyncio.Event()
        running = asyncio.create_task(router.generate(call(sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        await first.pause()  # a server that hangs
        first.hangs, first.error = how == "hangs", BackendError("out of memory") if how == "fails" else None
        num_checks = 1 if how == "fails" else MOST_SILENT
        found = [await router.check_replicas(timeout_s=0.01) for _ in range(num_checks)]
        assert found == [set()] * (num_checks - 1) + [{0}]
        assert len((await running).token_ids) == LONG.max_new_tokens and router.num_moved == 1
        await router.generate(call("again"))
        assert len(second.calls) == 2
        first.hangs, first.error = False, None
        await first.resume()
        assert await router.check_replicas() == set()
        await asyncio.gather(*(router.generate(replace(call(f"{n}"), session_id=f"{n}")) for n in range(2)))
        assert len(first.calls) == 2

    asyncio.run(scenario())


def test_checks_go_on_for_as_long_as_asked(tokenizer: Tokenizer) -> None:
    """Within the block a replica that stops answering is noticed without anybody asking; errors of the block pass."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2, delay_s=0.001)
        router, began = routed([first, second], tokenizer), asyncio.Event()
        async with router.checked(every_s=0.005):
            running = asyncio.create_task(router.generate(call(sampling=LONG), lambda chunk: began.set()))
            await began.wait()
            await first.pause()
            first.hangs = True
            assert len((await running).token_ids) == LONG.max_new_tokens
        assert router.num_moved == 1
        with pytest.raises(UserError, match="mine"):
            async with router.checked():
                raise UserError("mine")

    asyncio.run(scenario())


def test_a_publish_does_not_wait_for_a_server_that_hangs(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never takes the weights is given up when its health checks say so; the other one has them."""
    monkeypatch.setattr("ludus.engines.routed.replicas._POLL_S", 0.001)

    async def scenario() -> None:
        first, second = servers(tokenizer, 2)
        router = routed([first, second], tokenizer)

        async def hang(version: int, weights: WeightSource) -> None:
            first.hangs = True
            await asyncio.Event().wait()

        first.publish = hang  # type: ignore[method-assign]
        async with router.checked(every_s=0.001):
            await router.publish(1, NoNewWeights())
        assert set((await router.generate(call())).versions) == {1}
        assert len(second.calls) == 1

    asyncio.run(scenario())


def test_a_replica_that_reads_weights_may_be_silent_for_longer(tokenizer: Tokenizer) -> None:
    """Some checks without an answer are forgiven, more of them while it takes weights; any answer counts at once."""
    replica = Replica(servers(tokenizer, 1)[0], 0)
    for most, is_taking in ((MOST_SILENT, False), (MOST_SILENT_TAKING_WEIGHTS, True)):
        replica.is_taking_weights = is_taking
        for _ in range(most - 1):
            replica.note_health(is_well=None)
        assert replica.is_up
        replica.note_health(is_well=None)
        assert not replica.is_up
        replica.note_health(is_well=True)
        assert replica.is_up and replica.num_silent == 0
    replica.note_health(is_well=False)
    assert not replica.is_up


def test_a_call_waits_for_a_replica_that_joins(tokenizer: Tokenizer) -> None:
    """With patience the only replica may be lost, and weights may be published meanwhile: the call goes on at the
    one that joins, with the new weights; the trainer's own tensors have them too."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2, delay_s=0.001)
        router, began, weights = routed([first], tokenizer, patience_s=60.0), asyncio.Event(), Weights()
        running = asyncio.create_task(router.generate(call(sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        await router.remove(0)
        await router.publish(1, weights)
        assert weights.num_copies == 1
        await router.add(second)
        sampled = await running
        assert len(sampled.token_ids) == LONG.max_new_tokens and sampled.versions == tuple(sorted(sampled.versions))
        assert set(sampled.versions) == {0, 1}

    asyncio.run(scenario())


def test_patience_ends(tokenizer: Tokenizer) -> None:
    """After its time a call that nobody can serve fails with the last reason; an abort or a deadline ends it too."""

    async def scenario() -> None:
        (server,) = servers(tokenizer, 1)
        server.error = BackendError("its server is gone")
        with pytest.raises(BackendError, match="server is gone"):
            await routed([server], tokenizer, patience_s=0.02).generate(call())
        router = routed([server], tokenizer, patience_s=60.0)
        late = await router.generate(replace(call("late"), deadline_at=time.monotonic() + 0.01))
        waiting = asyncio.create_task(router.generate(call("waiting")))
        await asyncio.sleep(0)
        await router.abort("waiting")
        assert [late.stop_reason, (await waiting).stop_reason] == ["abort", "abort"]

    asyncio.run(scenario())


def test_one_that_missed_a_publish_gets_it_when_it_is_well(tokenizer: Tokenizer) -> None:
    """The next round of health checks gives it the weights, and it serves."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2)
        router = routed([first, second], tokenizer)
        first.error = BackendError("its server is gone")
        await router.publish(1, NoNewWeights())
        await router.check_replicas()
        assert first.stats().version == 0
        first.error = None
        await router.check_replicas()
        await router.remove(1)
        assert set((await router.generate(call())).versions) == {1}
        await router.check()

    asyncio.run(scenario())


def test_one_that_hangs_as_it_catches_up_holds_nobody_up(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Health checks go on while a replica takes the weights that it missed; it is found to hang, and the others get
    the next ones."""
    monkeypatch.setattr("ludus.engines.routed.replicas._POLL_S", 0.001)

    async def scenario() -> None:
        first, second = servers(tokenizer, 2)
        router, hung = routed([first, second], tokenizer), asyncio.Event()
        first.error = BackendError("its server is gone")
        await router.publish(1, NoNewWeights())

        async def hang(version: int, weights: WeightSource) -> None:
            first.hangs = True
            hung.set()
            await asyncio.Event().wait()

        first.publish, first.error = hang, None  # type: ignore[method-assign]
        async with asyncio.timeout(10), router.checked(every_s=0.001):
            await hung.wait()
            await router.publish(2, NoNewWeights())
        assert set((await router.generate(call())).versions) == {2}
        assert len(second.calls) == 1

    asyncio.run(scenario())


def test_a_transfer_that_never_ends_is_given_up(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica may say that it is well and still not take the weights: after its time the publish goes on."""
    monkeypatch.setattr("ludus.engines.routed.replicas._POLL_S", 0.001)
    monkeypatch.setattr("ludus.engines.routed.replicas.JOIN_TIMEOUT_S", 0.01)

    async def scenario() -> None:
        first, second = servers(tokenizer, 2)
        router = routed([first, second], tokenizer)

        async def hang(version: int, weights: WeightSource) -> None:
            await asyncio.Event().wait()

        first.publish = hang  # type: ignore[method-assign]
        async with asyncio.timeout(10):
            await router.publish(1, NoNewWeights())
        assert set((await router.generate(call())).versions) == {1} and not first.calls

    asyncio.run(scenario())


@pytest.mark.parametrize("is_paused_first", [False, True], ids=["paused meanwhile", "resumed meanwhile"])
def test_who_joins_while_the_others_are_paused_or_go_on_does_the_same(
    is_paused_first: bool, tokenizer: Tokenizer
) -> None:
    """Though it was no replica yet when they were: it would be paused for ever, or sample while nobody may."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2)
        router = routed([first], tokenizer)
        await router.publish(1, NoNewWeights())
        if is_paused_first:
            await router.pause()
        take = second.publish

        async def take_meanwhile(version: int, weights: WeightSource) -> None:
            await take(version, weights)
            await (router.resume() if is_paused_first else router.pause())

        second.publish = take_meanwhile  # type: ignore[method-assign]
        await router.add(second)
        assert second._is_paused == first._is_paused == (not is_paused_first)

    asyncio.run(scenario())


def test_a_router_shares_its_replicas_card_even_when_it_has_none(tokenizer: Tokenizer) -> None:
    """A replacement of a lost one is on the same card: it is paused when it joins in the trainer's turn."""

    async def scenario() -> None:
        first, second = servers(tokenizer, 2)
        first.shares_card = True
        router = routed([first], tokenizer, patience_s=60.0)
        assert router.shares_card and not routed([second], tokenizer).shares_card
        await router.remove(0)
        assert router.shares_card
        await router.pause()
        await router.add(second)
        assert second._is_paused
        await router.resume()
        assert not second._is_paused

    asyncio.run(scenario())


@pytest.mark.parametrize("is_well", [True, False])
def test_who_keeps_the_trainers_card_is_told(is_well: bool, tokenizer: Tokenizer) -> None:
    """A replica that is well and does not sleep, or wake, would have the card at the same time as the trainer, or
    never again; one that is down is replaced."""

    async def fails() -> None:
        raise BackendError("it does not sleep")

    async def scenario() -> None:
        first, second = servers(tokenizer, 2)
        router = routed([first, second], tokenizer, patience_s=60.0)
        if not is_well:
            first.error = BackendError("it is gone")
        for does in ("pause", "resume"):
            setattr(first, does, fails)
            first.shares_card = False
            await getattr(router, does)()  # others go on beside the trainer
            first.shares_card = True
            if is_well:
                with pytest.raises(BackendError, match="it does not sleep"):
                    await getattr(router, does)()
            else:
                await getattr(router, does)()
        assert "it does not sleep" in str(router._replicas.nobody())

    asyncio.run(scenario())
