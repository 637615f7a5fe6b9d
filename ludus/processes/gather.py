"""Concurrent work: the same for many items, or several of which the first to end decides.

Knows: tasks.  Knows not: what is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def gather(
    work: Callable[[ItemT], Awaitable[ResultT]], items: Iterable[ItemT], *, at_once: int | None = None
) -> list[ResultT]:
    """The result of `work` for each item, in order. The first error cancels the others and is raised unchanged.

    at_once: how many items are worked on at a time. None: all.
    """
    slots = nullcontext() if at_once is None else asyncio.Semaphore(at_once)

    async def one(item: ItemT) -> ResultT:
        async with slots:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:  # who asked knows nothing of a group of tasks
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def first_of(*works: Awaitable[ResultT]) -> ResultT:
    """The result or error of the first work to end; in a tie the one named first. The others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
