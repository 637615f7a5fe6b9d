"""Many rollouts at once: groups and lists of trajectories in the order in which they were given.

Knows: rollouts, groups, how many may fail.  Knows not: models, rewards' meaning, training.
Invariants: the order of what is returned is that of submission; an exception beyond those tolerated ends everything
that still plays and rises; cancellation and interrupts are nobody's failure and always rise.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from statistics import fmean
from typing import Any, TypeVar

from ludus.compat.art.bars import Bar, progress_bar
from ludus.compat.art.exchanges import listening
from ludus.compat.art.group import TrajectoryGroup, close_unplayed, current_tally, settle
from ludus.compat.art.rollout import Gathering, Rollout
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError

ResultT = TypeVar("ResultT")
AfterEach = Callable[[TrajectoryGroup], Any]
"""Given a whole group, returns what is kept of it, or an awaitable of that: a group, a list of groups, or None."""


class RolloutTally:
    """What has become of the rollouts of one gathering, on a bar."""

    def __init__(self, bar: Bar, *, max_exceptions: int | float, max_metrics: int | None) -> None:
        self.gathering = Gathering()
        self._bar = bar
        self._max_exceptions = max_exceptions
        self._max_metrics = max_metrics
        self._num_groups = 0
        self._num_rollouts = 0
        self._num_failed = 0
        self._num_tokens: int | None = None
        """None: nobody asked for them."""
        self._values: dict[str, list[float]] = {}

    def next_group_idx(self) -> int:
        self._num_groups += 1
        return self._num_groups - 1

    def begin(self, num_rollouts: int) -> None:
        self._num_rollouts += num_rollouts
        self._bar.total = self._num_rollouts
        self._bar.refresh()

    def finish(self, trajectory: Trajectory) -> None:
        for name, value in {"reward": trajectory.reward, **trajectory.metrics}.items():
            self._values.setdefault(name, []).append(float(value))
        self._show(1)

    def fail(self, error: Exception) -> None:
        self._num_failed += 1
        self._show(1)
        allowed = self._max_exceptions
        if self._num_failed > (allowed * self._num_rollouts if isinstance(allowed, float) else allowed):
            raise error

    def count_tokens(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Adds what an answer has sampled to the bar."""
        usage = answer.get("usage") or {}
        self._num_tokens = (self._num_tokens or 0) + int(usage.get("completion_tokens") or 0)
        self._show(0)

    def _show(self, num_done: int) -> None:
        means = {name: f"{fmean(values):.3g}" for name, values in self._values.items()}
        shown: dict[str, object] = dict(list(means.items())[: self._max_metrics])
        if self._num_tokens is not None:
            shown["completion_tokens"] = self._num_tokens
        if self._num_failed:
            shown["exceptions"] = self._num_failed
        self._bar.set_postfix(shown)
        self._bar.update(num_done)


async def gather_trajectory_groups(
    groups: Iterable[TrajectoryGroup | Awaitable[TrajectoryGroup]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
    max_metrics: int | None = None,
    after_each: AfterEach | None = None,
) -> list[TrajectoryGroup]:
    """The groups with all their rollouts played, in the order in which they were given.

    max_exceptions: so many rollouts may fail, or this share of them if it is a float; they stay in the groups as
    exceptions. after_each: what is kept of a group, as soon as it is whole; a group for which it returns None is left
    out. What it raises counts as one failure, and the group is left out. max_metrics: most that the bar shows.
    Raises the first exception that is one too many.
    """
    _check_tolerance(max_exceptions)
    given = list(groups)
    with ExitStack() as stack:
        bar = stack.enter_context(progress_bar(pbar_desc, 0, unit="rollout"))
        tally = RolloutTally(bar, max_exceptions=max_exceptions, max_metrics=max_metrics)
        stack.callback(current_tally.reset, current_tally.set(tally))
        stack.callback(close_unplayed, given)
        if pbar_total_completion_tokens:
            stack.enter_context(listening(tally.count_tokens))
        kept = await _all(_whole_group(group, tally, after_each) for group in given)
    return [group for groups_kept in kept for group in groups_kept]


async def gather_trajectories(
    trajectories: Iterable[Awaitable[Trajectory]],
    *,
    pbar_desc: str | None = "gather",
    pbar_total_completion_tokens: bool = False,
    max_exceptions: int | float = 0,
) -> list[Trajectory | BaseException]:
    """What each rollout returned, or raised if that is tolerated, in the order in which they were given."""
    _check_tolerance(max_exceptions)
    given = list(trajectories)
    with ExitStack() as stack:
        bar = stack.enter_context(progress_bar(pbar_desc, len(given), unit="rollout"))
        tally = RolloutTally(bar, max_exceptions=max_exceptions, max_metrics=None)
        if pbar_total_completion_tokens:
            stack.enter_context(listening(tally.count_tokens))
        stack.callback(close_unplayed, given)
        tally.begin(len(given))
        return await _all(
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
    if kept is None:
        return []
    found = list(kept) if isinstance(kept, list | tuple) else [kept]
    for each in found:
        if not isinstance(each, TrajectoryGroup):
            raise UserError(
                f"after_each returned {each!r:.100} of type {type(each).__name__}; allowed: a TrajectoryGroup, a list "
                "of them, or None to leave the group out"
            )
    return found


async def _all(coroutines: Iterable[Awaitable[ResultT]]) -> list[ResultT]:
    """All results in order; the first error ends the others and rises as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_await(each)) for each in coroutines]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _await(awaitable: Awaitable[ResultT]) -> ResultT:
    return await awaitable


def _check_tolerance(max_exceptions: float) -> None:
    if max_exceptions < 0 or (isinstance(max_exceptions, float) and max_exceptions > 1):
        raise UserError(
            f"max_exceptions={max_exceptions} must be a number of rollouts (0, 1, 2, …) or a share of them (a float "
            "from 0.0 to 1.0)"
        )
