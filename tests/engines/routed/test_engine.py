from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.engines.base import Engine, OnTokens, WeightSource
from ludus.engines.routed.engine import RoutedEngine
from ludus.engines.scripted import ScriptedEngine
from ludus.errors import BackendError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled, Sampling, TokenChunk
from tests.engines.contract import ALLOWED, CHECKS, PROMPT, NoNewWeights, call

ANSWER_TOKENS = 24


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)


def _improvise(asked: Call) -> list[int]:
    """Tokens each of which depends on its position and the seed alone: whoever goes on after some goes on alike."""
    if asked.sampling.grammar is not None:
        return [allowed[asked.prompt_ids[0] % len(allowed)] for allowed in ALLOWED]
    banned = {token for token, _ in asked.sampling.logit_bias}
    start = len(asked.prompt_ids)
    kept = (_token(asked.sampling.seed or 0, position) for position in range(start, start + 40))
    return [token for token in kept if token not in banned]


def _token(seed: int, position: int) -> int:
    return 3 + hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=1).digest()[0]


class Mortal(ScriptedEngine):
    """A scripted engine that fails each call after so many tokens, until it is healed."""

    fails_after: int | None = None
    """None: it serves."""
    refuses_weights = False

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        if self.fails_after is None:
            return await super().generate(call, on_tokens)
        if self.fails_after:
            most = min(self.fails_after, call.sampling.max_new_tokens or self.fails_after)
            await super().generate(replace(call, sampling=replace(call.sampling, max_new_tokens=most)), on_tokens)
        raise BackendError("its server is gone")

    async def publish(self, version: int, weights: WeightSource) -> None:
        if self.refuses_weights:
            raise BackendError("its server is gone")
        await super().publish(version, weights)


def mortals(tokenizer: Tokenizer, number: int, answers: Callable[[Call], list[int]] = _improvise) -> list[Mortal]:
    return [Mortal(answers, tokenizer, context_length=64) for _ in range(number)]


def routed(replicas: list[Mortal], tokenizer: Tokenizer) -> RoutedEngine:
    return RoutedEngine(replicas, stop_ids=tokenizer.stop_ids)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_keeps_the_engine_contract(
    check: Callable[[Callable[[], Engine]], None], number: int, tokenizer: Tokenizer
) -> None:
    """A router over replicas that keep the contract keeps it."""
    check(lambda: routed(mortals(tokenizer, number), tokenizer))


def test_a_lost_replica_gives_its_call_on_with_its_tokens(tokenizer: Tokenizer) -> None:
    """The answer is the one that a live replica would have given; every token is delivered once; each is counted."""

    async def scenario() -> None:
        first, second = mortals(tokenizer, 2)
        whole = await second.generate(call("alone"))
        first.fails_after = 5
        router, chunks = routed([first, second], tokenizer), list[TokenChunk]()
        sampled = await router.generate(call(), chunks.append)
        assert sampled.token_ids == whole.token_ids and sampled.stop_reason == whole.stop_reason
        assert sampled.logprobs == whole.logprobs
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == whole.token_ids
        assert second.calls[-1].prompt_ids == PROMPT + whole.token_ids[:5]
        assert second.calls[-1].sampling.max_new_tokens == 12 - 5
        assert router.num_moved == 1
        assert all(load.num_tokens == 0 for load in router.loads().values())

    asyncio.run(scenario())


@pytest.mark.parametrize("sampling", [Sampling(seed=1, stop=("zzz",)), Sampling(seed=1, presence_penalty=0.5)])
def test_what_depends_on_its_own_answer_is_sampled_again(sampling: Sampling, tokenizer: Tokenizer) -> None:
    """With stop strings or penalties the next replica gets the whole call; no token is delivered twice."""

    async def scenario() -> None:
        first, second = mortals(tokenizer, 2)
        first.fails_after = 5
        router, told = routed([first, second], tokenizer), list[int]()
        asked = call(sampling=replace(sampling, max_new_tokens=12))
        sampled = await router.generate(asked, lambda chunk: told.extend(chunk.token_ids))
        assert second.calls[-1].prompt_ids == PROMPT
        assert tuple(told) == sampled.token_ids and len(told) == 12

    asyncio.run(scenario())


def test_another_answer_in_its_place_is_an_error(tokenizer: Tokenizer) -> None:
    """Where the call must begin anew and comes out otherwise, it fails by name: delivered tokens cannot be revoked."""

    async def scenario() -> None:
        first, second = mortals(tokenizer, 1)[0], mortals(tokenizer, 1, lambda asked: [9] * 12)[0]
        first.fails_after = 5
        with pytest.raises(BackendError, match="sampled other tokens in its place"):
            await routed([first, second], tokenizer).generate(call(sampling=Sampling(seed=1, stop=("zzz",))))

    asyncio.run(scenario())


def test_when_all_fail_the_reason_is_told(tokenizer: Tokenizer) -> None:
    """Each replica is asked once, then the last one's error is raised; nothing stays outstanding."""

    async def scenario() -> None:
        replicas = mortals(tokenizer, 3)
        for replica in replicas:
            replica.fails_after = 0
        router = routed(replicas, tokenizer)
        with pytest.raises(BackendError, match="server is gone"):
            await router.generate(call())
        assert all(load.num_calls == 0 for load in router.loads().values())
        replicas[1].fails_after = None
        assert (await router.generate(call())).token_ids, "a replica that backs off is asked where no other can serve"

    asyncio.run(scenario())


def test_a_failed_replica_backs_off(tokenizer: Tokenizer) -> None:
    """After a failure calls go elsewhere for a while, those of its sessions too."""

    async def scenario() -> None:
        first, second = mortals(tokenizer, 2)
        router = routed([first, second], tokenizer)
        first.fails_after = 0
        await router.generate(call("1"))
        first.fails_after = None
        for number in range(3):
            await router.generate(replace(call(f"more {number}"), session_id=f"s{number}"))
        assert len(first.calls) == 0 and len(second.calls) == 4

    asyncio.run(scenario())


def test_an_answer_that_was_complete_is_not_gone_on_with(tokenizer: Tokenizer) -> None:
    """A replica that fails after an end-of-turn token, or after the last token allowed, has answered."""
    stop_id = min(tokenizer.stop_ids)

    async def scenario() -> None:
        for fails_after, reason in ((4, "stop"), (3, "length")):
            first, second = mortals(tokenizer, 2, lambda asked: [9, 9, 9, stop_id])
            first.fails_after = fails_after
            most = 3 if reason == "length" else 12
            sampled = await routed([first, second], tokenizer).generate(call(sampling=Sampling(max_new_tokens=most)))
            assert sampled.stop_reason == reason and len(sampled.token_ids) == fails_after
            assert not second.calls

    asyncio.run(scenario())


def test_siblings_share_a_replica(tokenizer: Tokenizer) -> None:
    """Calls of one group go to one replica, another group's to another, at once."""

    async def scenario() -> None:
        replicas = mortals(tokenizer, 2)
        router = routed(replicas, tokenizer)
        asked = [
            Call(f"{group}{n}", f"{group}{n}", PROMPT, Sampling(seed=n, max_new_tokens=8), group_id=group)
            for n in range(4)
            for group in "ab"
        ]
        await asyncio.gather(*(router.generate(one) for one in asked))
        seen = [{one.group_id for one in replica.calls} for replica in replicas]
        assert sorted(seen, key=str) == [{"a"}, {"b"}]

    asyncio.run(scenario())


def test_a_removed_replica_gives_its_calls_on(tokenizer: Tokenizer) -> None:
    """Removing a replica moves what runs there, with its tokens; its counters stay; an added one serves."""

    async def scenario() -> None:
        first, second = (ScriptedEngine(_improvise, tokenizer, token_delay_s=0.002) for _ in range(2))
        router, began = RoutedEngine([first], stop_ids=tokenizer.stop_ids), asyncio.Event()
        running = asyncio.create_task(router.generate(call(), lambda chunk: began.set()))
        await began.wait()
        assert await router.add(second) == 1
        assert await router.remove(0) is first
        sampled = await running
        assert len(sampled.token_ids) == 12 and sampled.stop_reason == "length"
        assert sampled.token_ids == tuple(_token(1, position) for position in range(5, 17))
        assert router.stats().num_sampled_tokens == 12 and router.stats().num_calls == 1
        with pytest.raises(UserError, match="there is no replica 0"):
            await router.remove(0)

    asyncio.run(scenario())


def test_a_replica_that_missed_a_publish_serves_nothing(tokenizer: Tokenizer) -> None:
    """No token is sampled with weights older than the published ones; a later publish takes the replica in again."""

    async def scenario() -> None:
        first, second = mortals(tokenizer, 2)
        router = routed([first, second], tokenizer)
        first.refuses_weights = True
        await router.publish(1, NoNewWeights())
        for number in range(3):
            sampled = await router.generate(replace(call(f"{number}"), session_id=f"s{number}"))
            assert set(sampled.versions) == {1}
        assert not first.calls
        first.refuses_weights = False
        await router.publish(2, NoNewWeights())
        await asyncio.gather(*(router.generate(replace(call(f"{n}"), session_id=f"{n}")) for n in range(2)))
        assert len(first.calls) == 1 and router.stats().version == 2

    asyncio.run(scenario())


def test_a_publish_that_reaches_nobody_raises(tokenizer: Tokenizer) -> None:
    """Where no replica takes the weights, publish raises and the old version goes on."""

    async def scenario() -> None:
        replicas = mortals(tokenizer, 2)
        router = routed(replicas, tokenizer)
        for replica in replicas:
            replica.refuses_weights = True
        with pytest.raises(BackendError, match="server is gone"):
            await router.publish(1, NoNewWeights())
        assert set((await router.generate(call())).versions) == {0}

    asyncio.run(scenario())


def test_a_pause_outlasts_a_publish(tokenizer: Tokenizer) -> None:
    """What was paused before a publish is paused after it; a replica added meanwhile too."""

    async def scenario() -> None:
        router = routed(mortals(tokenizer, 2), tokenizer)
        await router.pause()
        await router.add(mortals(tokenizer, 1)[0])
        await router.publish(1, NoNewWeights())
        waiting = [asyncio.create_task(router.generate(replace(call(f"{n}"), session_id=f"{n}"))) for n in range(3)]
        await asyncio.wait(waiting, timeout=0.05)  # time in which a token could come
        assert router.stats().num_sampled_tokens == 0
        await router.resume()
        await asyncio.gather(*waiting)

    asyncio.run(scenario())


@settings(deadline=None, max_examples=40)
@given(
    failures=st.lists(st.lists(st.integers(0, 6) | st.none(), min_size=3, max_size=3), min_size=1, max_size=3),
    seeds=st.lists(st.integers(0, 5), min_size=1, max_size=6),
)
def test_whatever_fails_answers_are_whole(
    failures: list[list[int | None]], seeds: list[int], tokenizer: Tokenizer
) -> None:
    """Calls in parallel over replicas that fail here and there: each gets the answer it would get alone, delivered once
    and in order, or BackendError; in the end nothing is outstanding and nothing runs."""

    async def scenario() -> None:
        replicas = mortals(tokenizer, 3)
        router = routed(replicas, tokenizer)
        for number, marks in enumerate(failures):
            for replica, fails_after in zip(replicas, marks, strict=True):
                replica.fails_after = fails_after
            heard: list[list[TokenChunk]] = [[] for _ in seeds]
            asked = [
                Call(f"{number}/{idx}", f"s{idx}", PROMPT, Sampling(seed=seed, max_new_tokens=ANSWER_TOKENS))
                for idx, seed in enumerate(seeds)
            ]
            answers = await asyncio.gather(
                *(router.generate(one, chunks.append) for one, chunks in zip(asked, heard, strict=True)),
                return_exceptions=True,
            )
            for seed, chunks, answer in zip(seeds, heard, answers, strict=True):
                told = [token for chunk in chunks for token in chunk.token_ids]
                whole = [_token(seed, len(PROMPT) + position) for position in range(ANSWER_TOKENS)]
                if isinstance(answer, Sampled):
                    assert told == whole == list(answer.token_ids)
                else:
                    assert isinstance(answer, BackendError), answer
                    assert told == whole[: len(told)]
        assert all(load.num_calls == load.num_tokens == 0 for load in router.loads().values())
        assert router.stats().num_running == 0

    asyncio.run(scenario())
