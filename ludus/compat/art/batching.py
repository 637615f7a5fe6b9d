"""Batches groups whose rollouts overlap with training on earlier batches.

Knows: how many batches may run at once.  Knows not: what is done with a batch.
Invariants: batches are in the order of their groups; no more than the limit run at any time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable
from itertools import islice

from ludus.compat.art.gathering import AfterEach, gather_trajectory_groups
from ludus.compat.art.group import TrajectoryGroup, close_unplayed
from ludus.errors import UserError

GivenGroup = TrajectoryGroup | Awaitable[TrajectoryGroup]


async def trajectory_group_batches(
    groups: Iterable[GivenGroup],
    *,
    batch_size: int,
    max_batch_exceptions: int | float = 0,
    max_concurrent_batches: int = 4,
    skip_batches: int = 0,
    pbar_desc: str | None = "batch",
    pbar_total_completion_tokens: bool = False,
    after_each: AfterEach | None = None,
) -> AsyncIterator[list[TrajectoryGroup]]:
    """Batches of `batch_size` finished groups, in order; the last may be smaller.

    While a batch is trained on, up to `max_concurrent_batches` - 1 later ones run, with the weights at that time.
    groups: consumed one by one, when their batch may start. skip_batches: number of batches to skip, for a resumed run.
    The other arguments are those of `gather_trajectory_groups`, for each batch.
    """
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("max_concurrent_batches", max_concurrent_batches, 1),
        ("skip_batches", skip_batches, 0),
    ):
        if value < least:
            raise UserError(f"{name}={value} must be at least {least}")
    rest = iter(groups)
    parts = iter(lambda: list(islice(rest, batch_size)), [])
    for _ in range(skip_batches):
        close_unplayed(next(parts, ()))
    playing: deque[asyncio.Task[list[TrajectoryGroup]]] = deque()
    number = skip_batches
    try:  # no task group: it cannot be left open while the caller trains
        while True:
            while len(playing) < max_concurrent_batches and (part := next(parts, None)) is not None:
                batch = gather_trajectory_groups(
                    part,
                    pbar_desc=None if pbar_desc is None else f"{pbar_desc} {number}",
                    pbar_total_completion_tokens=pbar_total_completion_tokens,
                    max_exceptions=max_batch_exceptions,
                    after_each=after_each,
                )
                playing.append(asyncio.ensure_future(batch))
                number += 1
            if not playing:
                return
            batch_groups = await playing[0]
            playing.popleft()
            yield batch_groups
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
