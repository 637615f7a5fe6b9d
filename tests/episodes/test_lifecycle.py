"""How requests end early: retries, clients that leave, limits, closing, engines that fail. No token is ever lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ludus.engines.scripted import ScriptedEngine
from ludus.episodes.limits import Limits
from ludus.episodes.recorder import Recorder
from ludus.episodes.spec import SessionSpec
from ludus.errors import AgentError, BackendError
from ludus.text.parsers.base import Delta, collect
from ludus.types import ChatRequest, Sampling
from tests.episodes.conftest import SetTable, Table, user

LONG = "the quick brown fox jumps over the lazy dog while seven wizards quietly brew a potion"
GUESS = ChatRequest((user("Guess."),))
SLOW_S = 0.002


def code_of(caught: pytest.ExceptionInfo[AgentError]) -> tuple[int, str]:
    return caught.value.status, caught.value.code


def keyed(key: str, content: str = "Guess.") -> ChatRequest:
    return ChatRequest((user(content),), retry_key=key)


def first_delta() -> tuple[asyncio.Event, Callable[[int, Delta], None]]:
    """An event set by the first delta, and the listener that sets it."""
    event = asyncio.Event()
    return event, lambda idx, delta: event.set()


# Retries


def test_retry_of_a_finished_request_is_replayed(set_table: SetTable) -> None:
    """The same key and body again give the same turns and the same deltas; the engine is asked once."""
    table = set_table([LONG])
    heard: list[Delta] = []

    async def play() -> None:
        first = await table.session.complete(keyed("k"))
        again = await table.session.complete(keyed("k"), lambda idx, delta: heard.append(delta))
        assert again == first
        assert collect(heard).content == LONG

    asyncio.run(play())
    assert len(table.engine.calls) == 1
    assert len(table.session.snapshot().turns) == 1


def test_retry_in_flight_is_joined(set_table: SetTable) -> None:
    """A retry that comes while the first request runs gets all deltas from the start and gets the same turns."""
    table = set_table([LONG])

    async def play() -> None:
        began, on_delta = first_delta()
        first = asyncio.create_task(table.session.complete(keyed("k"), on_delta))
        await began.wait()
        heard: list[Delta] = []
        again = await table.session.complete(keyed("k"), lambda idx, delta: heard.append(delta))
        assert again == await first
        assert collect(heard).content == LONG

    asyncio.run(play())
    assert len(table.engine.calls) == 1


def test_retry_from_another_thread_is_joined(set_table: SetTable) -> None:
    """The retry may wait on an event loop of its own; its deltas come there."""
    table = set_table([LONG], token_delay_s=SLOW_S)
    heard: list[tuple[int, Delta]] = []

    async def retry() -> Any:
        return await table.session.complete(keyed("k"), lambda idx, delta: heard.append((threading.get_ident(), delta)))

    async def play() -> None:
        began, on_delta = first_delta()
        first = asyncio.create_task(table.session.complete(keyed("k"), on_delta))
        await began.wait()
        again = await asyncio.to_thread(asyncio.run, retry())
        assert again == await first

    asyncio.run(play())
    assert collect([delta for _, delta in heard]).content == LONG
    assert threading.get_ident() not in {thread for thread, _ in heard}


def test_one_of_two_leaves_and_the_answer_goes_on(set_table: SetTable) -> None:
    """When the first client leaves, a retry that has joined still gets the whole answer."""
    table = set_table([LONG])

    async def play() -> None:
        began, on_delta = first_delta()
        first = asyncio.create_task(table.session.complete(keyed("k"), on_delta))
        await began.wait()
        again = asyncio.create_task(table.session.complete(keyed("k")))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        (turn,) = await again
        assert turn.reply.content == LONG

    asyncio.run(play())


def test_retry_after_leaving_samples_anew(set_table: SetTable) -> None:
    """A client that left and comes back with the same key does not get the broken answer."""
    table = set_table(lambda call: LONG)

    async def play() -> None:
        began, on_delta = first_delta()
        first = asyncio.create_task(table.session.complete(keyed("k"), on_delta))
        await began.wait()
        first.cancel()
        await asyncio.sleep(0)
        (turn,) = await table.session.complete(keyed("k"))
        assert turn.reply.content == LONG
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await table.session.complete(keyed("k"))) == (turn,)

    asyncio.run(play())
    assert [turn.sampled.stop_reason for turn in table.session.snapshot().turns] == ["abort", "stop"]


class _TooLate(ScriptedEngine):
    """Its answers are as good as done whenever it is asked to abort them."""

    async def abort(self, call_id: str) -> None: ...


@pytest.mark.parametrize("waits", [True, False])
def test_an_answer_that_came_whole_is_its_retrys(set_table: SetTable, waits: bool) -> None:
    """A connection may break in the last step of an answer: nobody samples it again, and it is recorded once."""
    text = set_table([]).text
    engine = _TooLate([LONG], text.tokenizer)
    session = Recorder(engine, text).open(SessionSpec("session"))
    heard: list[Delta] = []

    async def play() -> None:
        began, on_delta = first_delta()
        first = asyncio.create_task(session.complete(keyed("k"), on_delta))
        await began.wait()
        first.cancel()
        await asyncio.wait([first], timeout=None if waits else 0)
        assert first.done() is waits
        (turn,) = await session.complete(keyed("k"), lambda idx, delta: heard.append(delta))
        assert session.snapshot().turns == (turn,) and first.cancelled()

    asyncio.run(play())
    assert collect(heard).content == LONG and len(engine.calls) == 1


def test_key_with_another_body_is_refused(set_table: SetTable) -> None:
    """One key stands for one body."""
    table = set_table(["7", "8"])

    async def play() -> None:
        await table.session.complete(keyed("k"))
        with pytest.raises(AgentError) as caught:
            await table.session.complete(keyed("k", "Another."))
        assert code_of(caught) == (409, "idempotency_mismatch")

    asyncio.run(play())


# Clients that leave


def test_leaving_records_what_was_sampled(set_table: SetTable) -> None:
    """Cancelling aborts the engine call; the tokens sampled until then are a turn when the cancellation arrives."""
    table = set_table([LONG])

    async def play() -> None:
        began, on_delta = first_delta()
        task = asyncio.create_task(table.session.complete(GUESS, on_delta))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (turn,) = table.session.snapshot().turns
        assert (turn.finish_reason, turn.abort_cause) == ("abort", "client_cancel")
        assert LONG.startswith(turn.reply.content or "?")
        assert table.session.stats().num_running == table.engine.stats().num_running == 0

    asyncio.run(play())
    assert table.session.snapshot().num_sampled_tokens == table.engine.stats().num_sampled_tokens > 0


def test_leaving_through_a_cancel_scope(set_table: SetTable) -> None:
    """A cancel scope that insists, as those of web frameworks do, loses no token either."""
    table = set_table([LONG])

    async def play() -> None:
        began, on_delta = first_delta()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(table.session.complete, GUESS, on_delta)
            await began.wait()
            tasks.cancel_scope.cancel()
        assert len(table.session.snapshot().turns) == 1

    asyncio.run(play())
    assert table.session.snapshot().num_sampled_tokens == table.engine.stats().num_sampled_tokens


def test_leaving_before_the_first_token_leaves_no_turn(set_table: SetTable) -> None:
    """A request cancelled before anything was sampled is no turn."""
    table = set_table([LONG, "7"], token_delay_s=60)

    async def play() -> None:
        began = asyncio.Event()
        task = asyncio.create_task(table.session.complete(GUESS, on_start=lambda *_: began.set()))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(play())
    assert table.session.snapshot().turns == ()
    assert table.session.stats().num_running == 0


def test_a_loop_that_ends_keeps_tokens(set_table: SetTable) -> None:
    """Tokens are recorded even when the event loop of the request is torn down under it."""
    table = set_table([LONG])

    async def play() -> None:
        began, on_delta = first_delta()
        left_behind = asyncio.create_task(table.session.complete(GUESS, on_delta))
        await began.wait()
        assert not left_behind.done()

    asyncio.run(play())
    (turn,) = table.session.snapshot().turns
    assert turn.sampled.stop_reason == "abort"
    assert len(turn.sampled.token_ids) == table.engine.stats().num_sampled_tokens


# Limits


def test_turn_limit(set_table: SetTable) -> None:
    """The turn after the last allowed one is refused with a typed 400, choices counted one by one."""
    table = set_table(["a", "b", "c"], limits=Limits(max_turns=2))

    async def play() -> None:
        await table.session.complete(GUESS)
        with pytest.raises(AgentError) as caught:
            await table.session.complete(ChatRequest(GUESS.messages, n=2))
        assert code_of(caught) == (400, "turn_limit")
        await table.session.complete(GUESS)
        with pytest.raises(AgentError):
            await table.session.complete(GUESS)

    asyncio.run(play())
    assert table.session.stats().refused == {"turn_limit": 2}


def test_turn_limit_counts_what_is_in_flight(set_table: SetTable) -> None:
    """Of two requests at once only one gets the last turn."""
    table = set_table(["a", "b"], limits=Limits(max_turns=1))

    async def play() -> None:
        both = await asyncio.gather(*(table.session.complete(GUESS) for _ in range(2)), return_exceptions=True)
        assert [type(one) for one in both] == [tuple, AgentError]

    asyncio.run(play())


def test_token_limit_cuts_and_then_refuses(set_table: SetTable) -> None:
    """The answer that meets the token limit is cut there with `length`; the next request gets a typed 400."""
    table = set_table([LONG, LONG], limits=Limits(max_tokens=5))

    async def play() -> None:
        (turn,) = await table.session.complete(GUESS)
        assert len(turn.sampled.token_ids) == 5
        assert turn.finish_reason == "length"
        with pytest.raises(AgentError) as caught:
            await table.session.complete(GUESS)
        assert code_of(caught) == (400, "token_limit")

    asyncio.run(play())


def test_token_limit_holds_for_answers_at_once(set_table: SetTable) -> None:
    """Answers in flight share the budget: when it is used up all of them end."""
    table = set_table(lambda call: LONG, limits=Limits(max_tokens=20))

    async def play() -> None:
        turns = await table.session.complete(ChatRequest(GUESS.messages, n=4))
        assert {turn.finish_reason for turn in turns} == {"length"}

    asyncio.run(play())
    num_sampled = table.session.snapshot().num_sampled_tokens
    assert num_sampled == table.engine.stats().num_sampled_tokens
    assert 20 <= num_sampled < 20 + 2 * 4


def test_deadline_ends_a_running_answer(set_table: SetTable) -> None:
    """At the deadline the answer is aborted and recorded, and the request gets a typed 400, as does the next."""
    table = set_table([LONG], limits=Limits(deadline_at=time.monotonic() + 0.5), token_delay_s=0.1)

    async def play() -> None:
        for _ in range(2):
            with pytest.raises(AgentError) as caught:
                await table.session.complete(GUESS)
            assert code_of(caught) == (400, "deadline")

    asyncio.run(play())
    (turn,) = table.session.snapshot().turns
    assert (turn.sampled.stop_reason, turn.abort_cause) == ("abort", "deadline")
    assert len(table.engine.calls) == 1


# Closing


def test_close_gives_the_record_and_refuses(set_table: SetTable) -> None:
    """A closed session returns its record, again and again, and refuses requests with the reason."""
    table = set_table(["7", "8"])

    async def play() -> None:
        await table.session.complete(GUESS)
        record = table.session.close("the episode is over")
        assert record == table.session.snapshot() == table.session.close("twice")
        with pytest.raises(AgentError, match="the episode is over") as caught:
            await table.session.complete(GUESS)
        assert code_of(caught) == (400, "session_closed")

    asyncio.run(play())


def test_close_from_another_thread_keeps_partial_answers(set_table: SetTable) -> None:
    """Closing while answers run records them as far as they came; their requests end with `session_closed`."""
    table = set_table([LONG], token_delay_s=SLOW_S)

    async def play() -> None:
        began, on_delta = first_delta()
        task = asyncio.create_task(table.session.complete(GUESS, on_delta))
        await began.wait()
        record = await asyncio.to_thread(table.session.close, "time is up")
        (turn,) = record.turns
        assert (turn.sampled.stop_reason, turn.abort_cause) == ("abort", "session_closed")
        with pytest.raises(AgentError) as caught:
            await task
        assert code_of(caught) == (400, "session_closed")
        assert table.session.snapshot() == record

    asyncio.run(play())


def test_aclose_waits_for_every_token(set_table: SetTable) -> None:
    """Closing with patience has every token that the engine sampled in the record."""
    table = set_table(lambda call: LONG, token_delay_s=SLOW_S)

    async def play() -> None:
        began, on_delta = first_delta()
        tasks = [asyncio.create_task(table.session.complete(GUESS, on_delta)) for _ in range(3)]
        await began.wait()
        record = await table.session.aclose("time is up")
        assert record.num_sampled_tokens == table.engine.stats().num_sampled_tokens
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {one.code for one in ended if isinstance(one, AgentError)} == {"session_closed"}

    asyncio.run(play())


# Engines that fail


def test_engine_failure_reaches_the_agent_and_a_retry_starts_anew(set_table: SetTable) -> None:
    """A failed call raises BackendError; the same key may try again."""
    table = set_table([])
    with pytest.raises(BackendError, match="call number 1"):
        asyncio.run(table.session.complete(keyed("k")))
    with pytest.raises(BackendError, match="call number 1"):
        asyncio.run(table.session.complete(keyed("k")))
    assert len(table.engine.calls) == 2


def test_one_failing_choice_ends_its_siblings(set_table: SetTable) -> None:
    """When one of n choices fails, the others are aborted and recorded, and the request raises the failure."""
    table = set_table([LONG, LONG])
    with pytest.raises(BackendError, match="call number 3"):
        asyncio.run(table.session.complete(ChatRequest(GUESS.messages, n=3)))
    assert table.session.snapshot().num_sampled_tokens == table.engine.stats().num_sampled_tokens
    assert table.session.stats().num_running == 0


@pytest.mark.parametrize("num", [1, 2])
def test_an_answer_that_the_engine_breaks_off_is_no_answer(set_table: SetTable, num: int) -> None:
    """The request fails, so that it may be sent again; what was sampled is a turn, aborted by nobody's wish."""
    table = set_table([LONG] * num)

    async def play() -> None:
        began, on_delta = first_delta()
        task = asyncio.create_task(table.session.complete(replace(keyed("k"), n=num), on_delta))
        await began.wait()
        await table.engine.close()
        with pytest.raises(BackendError, match="ended the answer in the middle, by itself; send the request again"):
            await task

    asyncio.run(play())
    record = table.session.snapshot()
    assert {(turn.finish_reason, turn.abort_cause) for turn in record.turns} == {("abort", None)}
    assert record.num_sampled_tokens == table.engine.stats().num_sampled_tokens > 0


def test_a_listener_that_raises_loses_no_token(set_table: SetTable) -> None:
    """An error in whoever listens ends the request, not the record."""
    table = set_table([LONG])

    def on_delta(idx: int, delta: Delta) -> None:
        raise RuntimeError("the socket is gone")

    with pytest.raises(RuntimeError, match="socket"):
        asyncio.run(table.session.complete(GUESS, on_delta))
    assert table.session.snapshot().num_sampled_tokens == table.engine.stats().num_sampled_tokens > 0


async def _live(table: Table, steps: list[tuple[int, int]]) -> None:
    """Requests at once, each with n choices, each left by its client after some turns of the event loop (0: stays)."""

    async def one(idx: int, num_choices: int, patience: int) -> None:
        request = ChatRequest((user(f"Task {idx % 2}."),), n=num_choices, sampling=Sampling(max_new_tokens=9))
        task = asyncio.create_task(table.session.complete(request))
        if patience:
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(one(idx, *step) for idx, step in enumerate(steps)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), min_size=1, max_size=6))
def test_every_sampled_token_is_in_the_record(set_table: SetTable, steps: list[tuple[int, int]]) -> None:
    """Whoever leaves when, the record holds as many tokens as the engine sampled."""
    table = set_table(lambda call: LONG)
    asyncio.run(_live(table, steps))
    record = table.session.close("done")
    assert record.num_sampled_tokens == table.engine.stats().num_sampled_tokens == table.session.stats().num_tokens
    assert table.session.stats().num_running == 0
