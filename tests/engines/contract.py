"""What every engine keeps: one suite of checks, imported by the tests of each engine.

Each check takes `make_engine`, which returns a fresh engine that speaks at least 24 tokens to the prompt
(3, 4, 5, 6, 7) under seed 1 and the sampling of these checks, and has a context of at least 64 tokens. The points are
those of `ludus/engines/base.py`, then what the types around it say.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ludus.engines.base import Engine
from ludus.errors import BackendError, UserError
from ludus.types import Call, Sampled, Sampling, TokenChunk

MakeEngine = Callable[[], Engine]

PROMPT = (3, 4, 5, 6, 7)
SAMPLING = Sampling(seed=1, max_new_tokens=12)
LONG = replace(SAMPLING, max_new_tokens=24)
TOKEN_DELAY_S = 0.002
"""Of a stand-in for a server: at full speed it ends a LONG answer before a pause can find it unfinished."""
ALLOWED = (range(40, 46), range(46, 51), (60,))
GRAMMAR = "start: <[40-45]> <[46-50]> <[60]>"
"""Token by token what is allowed, and the same as a grammar; the checks know no text."""


class NoNewWeights:
    """A weight source in which nothing has changed."""

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        return ()

    def copy_into_shared(self) -> None:
        pass


def call(
    call_id: str = "call",
    *,
    sampling: Sampling = SAMPLING,
    prompt_ids: Sequence[int] = PROMPT,
    num_answered: int = 0,
) -> Call:
    return Call(call_id, "session", tuple(prompt_ids), sampling, num_answered=num_answered)


async def _generate(engine: Engine, asked: Call) -> tuple[Sampled, list[TokenChunk]]:
    chunks: list[TokenChunk] = []
    sampled = await engine.generate(asked, chunks.append)
    return sampled, chunks


def check_chunks_add_up(make_engine: MakeEngine) -> None:
    """`on_tokens` sees every token once, in order, with its logprob and version, before `generate` returns."""

    async def scenario() -> None:
        engine = make_engine()
        sampled, chunks = await _generate(engine, call())
        await engine.close()
        assert sampled.token_ids
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == sampled.token_ids
        assert tuple(logprob for chunk in chunks for logprob in chunk.logprobs) == sampled.logprobs
        assert tuple(version for chunk in chunks for version in chunk.versions) == sampled.versions

    asyncio.run(scenario())


def check_chunks_come_on_the_callers_loop(make_engine: MakeEngine) -> None:
    """`on_tokens` is called on the thread whose event loop awaits `generate`."""
    threads: set[int] = set()

    async def scenario() -> None:
        engine = make_engine()
        await engine.generate(call(), lambda chunk: threads.add(threading.get_ident()))
        await engine.close()

    asyncio.run(scenario())
    assert threads == {threading.get_ident()}


def check_logprobs_are_those_of_the_tokens(make_engine: MakeEngine, *, tolerance: float = 1e-3) -> None:
    """At temperature 1 the logprob of each sampled token is what `score` says of the same tokens."""

    async def scenario() -> None:
        engine = make_engine()
        sampled, _ = await _generate(engine, call())
        scored = await engine.score(PROMPT + sampled.token_ids)
        await engine.close()
        assert len(scored) == len(PROMPT) + len(sampled.token_ids) - 1
        assert sampled.logprobs == pytest.approx(scored[len(PROMPT) - 1 :], abs=tolerance)
        assert all(logprob <= 0 for logprob in sampled.logprobs)

    asyncio.run(scenario())


def check_publish_moves_the_version(make_engine: MakeEngine) -> None:
    """Tokens sampled after `publish(v)` carry v; a version that is not greater is refused."""

    async def scenario() -> None:
        engine = make_engine()
        first, _ = await _generate(engine, call("first"))
        start = engine.stats().version
        await engine.publish(start + 3, NoNewWeights())
        second, _ = await _generate(engine, call("second"))
        assert set(first.versions) == {start}
        assert set(second.versions) == {start + 3} == {engine.stats().version}
        with pytest.raises(UserError):
            await engine.publish(start + 3, NoNewWeights())
        await engine.close()

    asyncio.run(scenario())


def check_publish_within_a_call(make_engine: MakeEngine) -> None:
    """A call that runs across a publish keeps its tokens; their versions only grow, and end at the new one."""

    async def scenario() -> None:
        engine = make_engine()
        began = asyncio.Event()
        running = asyncio.create_task(engine.generate(call(sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        version = engine.stats().version + 1
        await engine.publish(version, NoNewWeights())
        num_before = engine.stats().num_sampled_tokens
        sampled = await running
        await engine.close()
        assert list(sampled.versions) == sorted(sampled.versions)
        assert set(sampled.versions) <= {version - 1, version}
        assert all(at == version for at in sampled.versions[num_before:])

    asyncio.run(scenario())


def check_abort_keeps_tokens(make_engine: MakeEngine) -> None:
    """An aborted call returns the tokens sampled so far, the same that it streamed, and says `abort`."""

    async def scenario() -> None:
        engine = make_engine()
        began = asyncio.Event()
        chunks: list[TokenChunk] = []

        def on_tokens(chunk: TokenChunk) -> None:
            chunks.append(chunk)
            began.set()

        whole = await engine.generate(call("whole", sampling=LONG))
        running = asyncio.create_task(engine.generate(call("aborted", sampling=LONG), on_tokens))
        await began.wait()
        await engine.abort("aborted")
        sampled = await running
        await engine.close()
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == sampled.token_ids
        assert sampled.token_ids == whole.token_ids[: len(sampled.token_ids)]
        if len(sampled.token_ids) < len(whole.token_ids):
            assert sampled.stop_reason == "abort"

    asyncio.run(scenario())


def check_abort_of_unknown_is_ignored(make_engine: MakeEngine) -> None:
    """Aborting a call that has ended or never was does nothing."""

    async def scenario() -> None:
        engine = make_engine()
        await engine.abort("never")
        sampled = await engine.generate(call())
        await engine.abort("call")
        again = await engine.generate(call())
        await engine.close()
        assert again.token_ids == sampled.token_ids

    asyncio.run(scenario())


def check_cancel_ends_the_call(make_engine: MakeEngine) -> None:
    """Cancelling the task that awaits `generate` ends the call; the engine goes on serving."""

    async def scenario() -> None:
        engine = make_engine()
        began = asyncio.Event()
        running = asyncio.create_task(engine.generate(call("left", sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        sampled = await engine.generate(call("next"))
        assert sampled.token_ids
        assert engine.stats().num_running == 0
        await engine.close()

    asyncio.run(scenario())


def check_seed_repeats_the_sample(make_engine: MakeEngine) -> None:
    """The same prompt, sampling and seed give the same tokens, alone or beside other calls; the seed is reported."""

    async def scenario() -> None:
        engine = make_engine()
        alone = await engine.generate(call("alone"))
        others = [call(f"other {seed}", sampling=replace(SAMPLING, seed=seed)) for seed in (2, 3)]
        beside, *_ = await asyncio.gather(*(engine.generate(asked) for asked in [call("beside"), *others]))
        await engine.close()
        assert beside.token_ids == alone.token_ids
        assert beside.seed == alone.seed == 1

    asyncio.run(scenario())


def check_drawn_seed_repeats_the_sample(make_engine: MakeEngine) -> None:
    """Without a seed the engine draws one; asking again with the reported seed gives the same tokens."""

    async def scenario() -> None:
        engine = make_engine()
        drawn = await engine.generate(call("drawn", sampling=replace(SAMPLING, seed=None)))
        repeated = await engine.generate(call("repeated", sampling=replace(SAMPLING, seed=drawn.seed)))
        await engine.close()
        assert repeated.token_ids == drawn.token_ids

    asyncio.run(scenario())


def check_max_new_tokens(make_engine: MakeEngine) -> None:
    """`max_new_tokens` cuts the answer there and says `length`."""

    async def scenario() -> None:
        engine = make_engine()
        whole = await engine.generate(call("whole"))
        cut = await engine.generate(call("cut", sampling=replace(SAMPLING, max_new_tokens=3)))
        await engine.close()
        assert cut.token_ids == whole.token_ids[:3]
        assert cut.stop_reason == "length"

    asyncio.run(scenario())


def check_context_ends_the_answer(make_engine: MakeEngine) -> None:
    """Without `max_new_tokens` the answer may fill the context, and no more; a prompt that fills it is refused."""

    async def scenario() -> None:
        engine = make_engine()
        prompt_ids = [3 + idx % 20 for idx in range(engine.context_length - 4)]
        sampled = await engine.generate(call("near", sampling=Sampling(seed=1), prompt_ids=prompt_ids))
        assert 1 <= len(sampled.token_ids) <= 4
        with pytest.raises(UserError):
            await engine.generate(call("full", prompt_ids=[3] * engine.context_length))
        await engine.close()

    asyncio.run(scenario())


def check_stop_token_ids(make_engine: MakeEngine) -> None:
    """A stop token of the call's own ends the answer where it first comes, and is the answer's last token."""

    async def scenario() -> None:
        engine = make_engine()
        whole = await engine.generate(call("whole"))
        stop_id = whole.token_ids[5]
        cut = await engine.generate(call("cut", sampling=replace(SAMPLING, stop_token_ids=(stop_id,))))
        await engine.close()
        assert cut.token_ids == whole.token_ids[: whole.token_ids.index(stop_id) + 1]
        assert cut.stop_reason == "stop"

    asyncio.run(scenario())


def check_ignore_eos(make_engine: MakeEngine) -> None:
    """With `ignore_eos` every answer has all its `max_new_tokens`, and begins as the one that stops."""

    async def scenario() -> None:
        engine = make_engine()
        asked = replace(SAMPLING, max_new_tokens=50)
        whole = await engine.generate(call("whole", sampling=asked))
        going_on = await engine.generate(call("going on", sampling=replace(asked, ignore_eos=True)))
        await engine.close()
        assert len(going_on.token_ids) == 50 and going_on.stop_reason == "length"
        assert going_on.token_ids[: len(whole.token_ids)] == whole.token_ids

    asyncio.run(scenario())


def check_bias(make_engine: MakeEngine) -> None:
    """A token that is biased by -100 does not come; all else about the answer stays an answer."""

    async def scenario() -> None:
        engine = make_engine()
        whole = await engine.generate(call("whole"))
        banned = whole.token_ids[5]
        sampled = await engine.generate(call("biased", sampling=replace(SAMPLING, logit_bias=((banned, -100.0),))))
        await engine.close()
        assert sampled.token_ids and banned not in sampled.token_ids
        assert sampled.kept_ids == ()

    asyncio.run(scenario())


def check_grammar(make_engine: MakeEngine) -> None:
    """An answer under a grammar is a text of it and says `stop`; cut short it is the beginning of one."""

    async def scenario() -> None:
        engine = make_engine()
        asked = replace(SAMPLING, grammar=GRAMMAR)
        whole, chunks = await _generate(engine, call("whole", sampling=asked))
        cut = await engine.generate(call("cut", sampling=replace(asked, max_new_tokens=1)))
        await engine.close()
        assert whole.stop_reason == "stop" and cut.stop_reason == "length"
        assert cut.token_ids == whole.token_ids[:1]
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == whole.token_ids
        for token, allowed in zip(whole.token_ids, ALLOWED, strict=False):  # an engine may add an end-of-turn token
            assert token in allowed
        assert len(whole.token_ids) >= len(ALLOWED)
        assert len(whole.kept_ids) == len(whole.token_ids)
        for token, kept in zip(whole.token_ids, whole.kept_ids, strict=True):
            assert kept is None or (token in kept and list(kept) == sorted(set(kept)))

    asyncio.run(scenario())


def check_grammar_that_cannot_be(make_engine: MakeEngine) -> None:
    """A grammar that cannot be compiled is refused, with its fault named."""

    async def scenario() -> None:
        engine = make_engine()
        with pytest.raises(UserError, match="nosuch"):
            await engine.generate(call(sampling=replace(SAMPLING, grammar="start: nosuch")))
        assert (await engine.generate(call())).token_ids
        await engine.close()

    asyncio.run(scenario())


def check_top_logprobs(make_engine: MakeEngine) -> None:
    """Asked for k top logprobs, every token gets k pairs, the likeliest first; not asked for, none."""

    async def scenario() -> None:
        engine = make_engine()
        plain = await engine.generate(call("plain"))
        sampled = await engine.generate(call("top", sampling=replace(SAMPLING, top_logprobs=3)))
        await engine.close()
        assert plain.top_logprobs == ()
        assert sampled.token_ids == plain.token_ids
        for pairs in sampled.top_logprobs:
            logprobs = [logprob for _, logprob in pairs]
            assert len(pairs) == 3
            assert logprobs == sorted(logprobs, reverse=True)

    asyncio.run(scenario())


def check_pause_holds_and_resume_lets_go(make_engine: MakeEngine) -> None:
    """After `pause` has returned no token is sampled until `resume`; the answer is the same as without a pause."""

    async def scenario() -> None:
        engine = make_engine()
        whole = await engine.generate(call("whole", sampling=LONG))
        began = asyncio.Event()
        running = asyncio.create_task(engine.generate(call("paused", sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        await engine.pause()
        num_sampled = engine.stats().num_sampled_tokens
        late = asyncio.create_task(engine.generate(call("late")))
        await asyncio.wait({late}, timeout=0.05)  # time in which a token could come
        assert engine.stats().num_sampled_tokens == num_sampled
        await engine.resume()
        assert (await running).token_ids == whole.token_ids
        assert (await late).token_ids
        await engine.close()

    asyncio.run(scenario())


def check_abort_while_paused(make_engine: MakeEngine) -> None:
    """A call is aborted while the engine pauses, and keeps the tokens it had."""

    async def scenario() -> None:
        engine = make_engine()
        began = asyncio.Event()
        running = asyncio.create_task(engine.generate(call(sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        await engine.pause()
        await engine.abort("call")
        sampled = await running
        await engine.resume()
        await engine.close()
        assert sampled.token_ids

    asyncio.run(scenario())


def check_deadline_aborts(make_engine: MakeEngine) -> None:
    """A call past its deadline ends with `abort` and what it has."""

    async def scenario() -> None:
        engine = make_engine()
        asked = replace(call(sampling=LONG), deadline_at=time.monotonic())
        sampled, chunks = await _generate(engine, asked)
        await engine.close()
        assert sampled.stop_reason == "abort"
        assert tuple(token for chunk in chunks for token in chunk.token_ids) == sampled.token_ids

    asyncio.run(scenario())


def check_many_calls_at_once(make_engine: MakeEngine) -> None:
    """Calls with prompts and seeds of their own, run at once, get what each gets alone."""

    async def scenario() -> None:
        engine = make_engine()
        asked = [
            call(f"call {idx}", sampling=replace(SAMPLING, seed=idx), prompt_ids=(*PROMPT, 8 + idx)) for idx in range(6)
        ]
        alone = [await engine.generate(replace(one, id=f"alone {one.id}")) for one in asked]
        at_once = await asyncio.gather(*(engine.generate(one) for one in asked))
        await engine.close()
        assert [one.token_ids for one in at_once] == [one.token_ids for one in alone]

    asyncio.run(scenario())


def check_several_loops(make_engine: MakeEngine) -> None:
    """Threads with event loops of their own share one engine."""
    engine = make_engine()
    answers: dict[int, tuple[int, ...]] = {}

    def work(worker: int) -> None:
        answers[worker] = asyncio.run(engine.generate(call(f"worker {worker}"))).token_ids

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(engine.close())
    assert len(answers) == 3
    assert len(set(answers.values())) == 1


def check_stats_count(make_engine: MakeEngine) -> None:
    """Calls and sampled tokens are counted once each."""

    async def scenario() -> None:
        engine = make_engine()
        answers = [await engine.generate(call(f"call {idx}")) for idx in range(2)]
        stats = engine.stats()
        await engine.close()
        assert stats.num_calls == 2
        assert stats.num_running == stats.num_waiting == 0
        assert stats.num_sampled_tokens == sum(len(answer.token_ids) for answer in answers)
        assert stats.num_prefilled_tokens + stats.num_cached_tokens >= 2 * len(PROMPT) - 2

    asyncio.run(scenario())


def check_close_ends_calls(make_engine: MakeEngine) -> None:
    """Closing aborts what runs, with its tokens, and may be done twice."""

    async def scenario() -> None:
        engine = make_engine()
        began = asyncio.Event()
        running = asyncio.create_task(engine.generate(call(sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        await engine.close()
        assert (await running).token_ids
        await engine.close()

    asyncio.run(scenario())


def check_says_whether_it_serves(make_engine: MakeEngine) -> None:
    """`check` returns while the engine can serve, also while it is paused, and raises once it is closed."""

    async def scenario() -> None:
        engine = make_engine()
        await engine.check()
        await engine.pause()
        await engine.check()
        await engine.resume()
        await engine.close()
        with pytest.raises(BackendError):
            await engine.check()

    asyncio.run(scenario())


def check_publish_while_paused(make_engine: MakeEngine) -> None:
    """Weights published in a pause do not end it; what is sampled after it, in older calls too, has their version."""

    async def scenario() -> None:
        engine = make_engine()
        began = asyncio.Event()
        running = asyncio.create_task(engine.generate(call(sampling=LONG), lambda chunk: began.set()))
        await began.wait()
        await engine.pause()
        was_running, version = not running.done(), engine.stats().version + 1  # it may have been faster than the pause
        await engine.publish(version, NoNewWeights())
        num_before = engine.stats().num_sampled_tokens
        await asyncio.wait({running}, timeout=0.05)  # time in which a token could come
        assert engine.stats().num_sampled_tokens == num_before and running.done() != was_running
        await engine.resume()
        sampled = await running
        await engine.close()
        assert set(sampled.versions[num_before:]) <= {version}
        assert set(sampled.versions[:num_before]) == {version - 1}

    asyncio.run(scenario())


def check_prompt_that_does_not_fit(make_engine: MakeEngine) -> None:
    """A prompt that fills the context is the caller's mistake, and no other call suffers from it."""

    async def scenario() -> None:
        engine = make_engine()
        for num_tokens in (engine.context_length, engine.context_length + 7):
            with pytest.raises(UserError, match="context"):
                await engine.generate(call("too long", prompt_ids=[5] * num_tokens))
        assert (await engine.generate(call())).token_ids
        assert engine.stats().num_running == 0
        await engine.close()

    asyncio.run(scenario())


CHECKS: tuple[Callable[[MakeEngine], None], ...] = (
    check_chunks_add_up,
    check_chunks_come_on_the_callers_loop,
    check_logprobs_are_those_of_the_tokens,
    check_publish_moves_the_version,
    check_publish_within_a_call,
    check_abort_keeps_tokens,
    check_abort_of_unknown_is_ignored,
    check_cancel_ends_the_call,
    check_seed_repeats_the_sample,
    check_drawn_seed_repeats_the_sample,
    check_max_new_tokens,
    check_context_ends_the_answer,
    check_stop_token_ids,
    check_ignore_eos,
    check_bias,
    check_grammar,
    check_grammar_that_cannot_be,
    check_top_logprobs,
    check_pause_holds_and_resume_lets_go,
    check_abort_while_paused,
    check_deadline_aborts,
    check_many_calls_at_once,
    check_several_loops,
    check_stats_count,
    check_close_ends_calls,
    check_says_whether_it_serves,
    check_publish_while_paused,
    check_prompt_that_does_not_fit,
)
