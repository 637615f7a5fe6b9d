"""Reward functions in processes of their own: values, errors, deadlines, crashes."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from ludus.errors import UserError
from ludus.processes.calls import WorkerCrashedError, WorkerTimeoutError
from ludus.rewards.wrapper import AsyncRewardWrapper
from ludus.runs.spans import SpanLog, collect_spans


def reward_of(wrapper: AsyncRewardWrapper, *args: Any, **kwargs: Any) -> Any:
    """One call; the wrapper is closed behind it."""

    async def call() -> Any:
        try:
            return await wrapper(*args, **kwargs)
        finally:
            wrapper.close()

    return asyncio.run(call())


def length_reward(prompt: str, completion: str, *, limit: int, **_: Any) -> float:
    return float(len(completion) <= limit) if os.getpid() else 0.0


def test_a_reward_function_is_awaited() -> None:
    """It gets its arguments, in another process, and its value comes back; columns it does not name too."""

    def where(*args: Any, **kwargs: Any) -> tuple[float, int]:
        return length_reward(*args, **kwargs), os.getpid()

    reward, pid = reward_of(AsyncRewardWrapper(where), "2+2?", "four", limit=4, answer="4")
    assert reward == 1.0
    assert pid != os.getpid()


def test_an_async_reward_function_is_awaited_there() -> None:
    """`async def` works the same."""

    async def reward(completion: str) -> float:
        await asyncio.sleep(0)
        return 0.5

    assert reward_of(AsyncRewardWrapper(reward), "four") == 0.5


def test_a_hung_function_is_killed_once_and_worth_what_was_said(tmp_path: Path) -> None:
    """Too slow is a float, at once and not after retries: it would be too slow again."""
    tries = tmp_path / "tries"

    def hang() -> float:
        with tries.open("a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(600)
        return 1.0

    reward = reward_of(AsyncRewardWrapper(hang, timeout_seconds=0.5))
    assert reward == 0.0 and isinstance(reward, float)
    (pid,) = tries.read_text().split()
    assert not Path(f"/proc/{pid}").exists()
    assert reward_of(AsyncRewardWrapper(hang, timeout_seconds=0.5, timeout_reward=-1.0)) == -1.0
    with pytest.raises(WorkerTimeoutError):
        reward_of(AsyncRewardWrapper(hang, timeout_seconds=0.5, timeout_reward=None))


def crashing(tmp_path: Path, num_crashes: int) -> Callable[[], float]:
    tries = tmp_path / "tries"

    def reward() -> float:
        with tries.open("a") as file:
            file.write("x")
        if len(tries.read_text()) <= num_crashes:
            os._exit(9)
        return 1.0

    return reward


def test_a_crash_is_tried_again(tmp_path: Path) -> None:
    """A process that dies is replaced, and the call repeated so often as was said."""
    assert reward_of(AsyncRewardWrapper(crashing(tmp_path, 2), max_retries=2)) == 1.0
    (tmp_path / "tries").unlink()
    with pytest.raises(WorkerCrashedError, match="exit status 9"):
        reward_of(AsyncRewardWrapper(crashing(tmp_path, 2), max_retries=1))


def test_what_the_function_raises_is_raised_once(tmp_path: Path) -> None:
    """An error of the function would come again: it is not tried again."""
    tries = tmp_path / "tries"

    def fail() -> float:
        with tries.open("a") as file:
            file.write("x")
        raise KeyError("answer")

    with pytest.raises(KeyError, match="answer"):
        reward_of(AsyncRewardWrapper(fail))
    assert tries.read_text() == "x"


def test_many_calls_share_the_processes() -> None:
    """No more processes than max_workers, whatever event loop asks."""
    wrapper = AsyncRewardWrapper(lambda: os.getpid(), max_workers=2)

    async def many() -> set[int]:
        return set(await asyncio.gather(*(wrapper() for _ in range(8))))

    pids = asyncio.run(many()) | asyncio.run(many())
    wrapper.close()
    assert 1 <= len(pids) <= 2


def test_a_call_is_a_span_of_its_episode() -> None:
    """What the reward was, and how long it took, is kept with the episode."""
    log = SpanLog()
    with collect_spans(log):
        reward_of(AsyncRewardWrapper(length_reward), "", "four", limit=4)
    (span,) = log.snapshot()
    assert (span.kind, span.name, span.outputs) == ("reward", "length_reward", 1.0)


def test_a_wrapper_travels_and_has_its_own_processes_there() -> None:
    """An agent that holds one can be sent to a process."""
    wrapper = AsyncRewardWrapper(lambda: 2.0, timeout_seconds=3.0, max_workers=1, timeout_reward=None)
    copy = pickle.loads(cloudpickle.dumps(wrapper))
    assert (copy.timeout_seconds, copy.max_workers, copy.timeout_reward) == (3.0, 1, None)
    assert reward_of(copy) == 2.0


def test_nonsense_is_refused() -> None:
    """No function, fewer than no retries."""
    with pytest.raises(UserError, match="reward_fn is 'gsm8k' of type str"):
        AsyncRewardWrapper("gsm8k")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="max_retries=-1"):
        AsyncRewardWrapper(length_reward, max_retries=-1)
