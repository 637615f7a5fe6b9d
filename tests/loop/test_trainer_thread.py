"""The trainer's thread: one job after the other, errors where they are awaited."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ludus.loop.trainer_thread import TrainerThread


def test_jobs_run_in_order_on_one_thread_of_their_own() -> None:
    """Two jobs given at once run one after the other, on the same thread, while the loop goes on."""
    names: list[str] = []

    def job(number: int) -> int:
        names.append(threading.current_thread().name)
        return number

    async def main() -> list[int]:
        with TrainerThread("trainer") as work:
            return list(await asyncio.gather(work.run(job, 1), work.run(job, 2)))

    assert asyncio.run(main()) == [1, 2]
    assert names == ["ludus-trainer"] * 2


def test_an_error_rises_where_the_result_is_awaited() -> None:
    """A job that fails does not end the thread."""

    def fail() -> None:
        raise ValueError("bad batch")

    async def main() -> int:
        with TrainerThread("trainer") as work:
            with pytest.raises(ValueError, match="bad batch"):
                await work.run(fail)
            return await work.run(int, "7")

    assert asyncio.run(main()) == 7
