"""Runs many rollouts concurrently: groups, or lists of trajectories.

Knows: rollouts, groups, how many may fail.  Knows not: models, rewards' meaning, training.
Invariants: results are in the order of submission; an exception beyond the tolerated number cancels everything that is
still running, and is raised; cancellation and interrupts do not count as failures, and are always raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ludus.compat.art.bars import progress_bar
from ludus.compat.art.context import bound
from ludus.compat.art.exchanges import listening
from ludus.compat.art.group import TrajectoryGroup, as_many, close_unplayed
from ludus.compat.art.rollout import Rollout
from ludus.compat.art.tally import Played, RolloutTally, current_tally, in_order, settle
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError

AfterEach = Callable[[TrajectoryGroup], Any]
"""Gets a finished group; returns a group, a list of groups, or None (drop it), or an awaitable of one of them."""


async def gather_trajectory_groups(
    groups: Iterable[TrajectoryGroup | Awaitable[TrajectoryGroup]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
) -> list[TrajectoryGroup]:
    """Run all rollouts of the groups; returns the groups in the given order.

    max_exceptions: number of rollouts that may fail, or, as a float, their share; their exceptions are stored in the
    groups. after_each: called with each finished group, and returns what replaces it; None drops the group. An
    exception in it counts as one failure, and drops the group. max_metrics: limit on the metrics shown on the bar.
    Raises the first exception beyond the tolerated number.
    """
    given = as_many("train_dataset.batch_size", groups)
    playing = _tallied(given, pbar_desc, pbar_total_completion_tokens, max_exceptions, max_metrics)
    with playing as tally, bound(current_tally, tally):
        kept = await in_order(_whole_group(group, tally, after_each) for group in given)
    return [group for groups_kept in kept for group in groups_kept]


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory | Iterable[Trajectory]]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
) -> list[Played | BaseException]:
    """Run rollouts; returns the result, or tolerated exception, of each in the given order.

    A rollout with several players may return several trajectories, as a list.
    """
    given = as_many("gconfig.n_samples", trajectories)
    with _tallied(given, pbar_desc, pbar_total_completion_tokens, max_exceptions) as tally:
        tally.begin(len(given))
        return await in_order(
            settle(member, Rollout(tally.gathering, group_idx, 0), tally) for group_idx, member in enumerate(given)
        )


async def _whole_group(
    given: TrajectoryGroup | Awaitable[TrajectoryGroup], tally: RolloutTally, after_each: AfterEach | None
) -> list[TrajectoryGroup]:
    group: object = await given
    if not isinstance(group, TrajectoryGroup):
        raise UserError(f"a group is {group!r:.100} of type {type(group).__name__}; it must be a TrajectoryGroup")
    await group
    if after_each is None:
        return [group]
    try:
        kept = after_each(group)
        if inspect.isawaitable(kept):
            kept = await kept
    except Exception as error:
        tally.fail(error)
        return []
    found = list(kept) if isinstance(kept, list | tuple) else [] if kept is None else [kept]
    for each in found:
        if not isinstance(each, TrajectoryGroup):
            raise UserError(
                f"after_each returned {each!r:.100} of type {type(each).__name__}; allowed: a TrajectoryGroup, a list "
                "of them, or None to leave the group out"
            )
    return found


@contextmanager
def _tallied(
    given: Sequence[object],
    description: str | None,
    counts_tokens: bool,
    max_exceptions: int | float,
    max_metrics: int | None = None,
) -> Iterator[RolloutTally]:
    """Count the rollouts of the block together, on a bar; those that were not started are closed at its end."""
    if max_exceptions < 0 or (isinstance(max_exceptions, float) and max_exceptions > 1):
        raise UserError(
            f"max_exceptions={max_exceptions} must be a number of rollouts (0, 1, 2, …) or a share of them (a float "
            "from 0.0 to 1.0)"
        )
    with ExitStack() as stack:
        bar = stack.enter_context(progress_bar(description, 0, unit="rollout"))
        tally = RolloutTally(bar, max_exceptions=max_exceptions, max_metrics=max_metrics)
        stack.callback(close_unplayed, given)
        if counts_tokens:
            stack.enter_context(listening(tally.count_tokens))
        yield tally
