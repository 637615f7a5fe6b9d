"""Many rollouts at once: groups and lists of trajectories in the order in which they were given.

Knows: rollouts, groups, how many may fail.  Knows not: models, rewards' meaning, training.
Invariants: the order of what is returned is that of submission; an exception beyond those tolerated ends everything
that still plays and rises; cancellation and interrupts are no failure and always rise.
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
"""Given a whole group, returns what is kept of it, or an awaitable of that: a group, a list of groups, or None."""


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
    """What each rollout returned, or raised if that is tolerated, in the order in which they were given.

    A rollout of several players may return several trajectories, which are a list then.
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
    """What is played in the block is counted together, on a bar; what is left unplayed ends with it."""
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
