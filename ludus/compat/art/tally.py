"""Counts the results of rollouts that are gathered together, and shows them on a bar.

Knows: their results and exceptions, how many may fail.  Knows not: groups, models, training.
Invariants: results are in the order of submission; cancelling is never counted as a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from contextvars import ContextVar
from itertools import count
from statistics import fmean
from typing import Any, TypeVar

from ludus.compat.art.bars import Bar
from ludus.compat.art.rollout import Gathering, Rollout, play_rollout
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError

ResultT = TypeVar("ResultT")
Played = Trajectory | list[Trajectory]
"""What one rollout returned: one trajectory, or those of several players."""
Member = Trajectory | BaseException | Awaitable[Trajectory | Iterable[Trajectory]]


class RolloutTally:
    """Counts of the rollouts of one gathering, with a bar."""

    def __init__(
        self, bar: Bar | None = None, *, max_exceptions: int | float = 0, max_metrics: int | None = None
    ) -> None:
        """max_exceptions: number of rollouts that may fail, or, as a float, their share.  max_metrics: limit on the
        metrics shown on the bar. None: all."""
        self.gathering = Gathering()
        self.group_idxs = count()
        """Index of the next group that starts."""
        self._bar = Bar() if bar is None else bar
        self._max_exceptions = max_exceptions
        self._max_metrics = max_metrics
        self._num_rollouts = 0
        self._num_failed = 0
        self._num_tokens: int | None = None
        """None: tokens are not counted."""
        self._values: dict[str, list[float]] = {}

    def begin(self, num_rollouts: int) -> None:
        """`num_rollouts` rollouts are started."""
        self._num_rollouts += num_rollouts
        self._bar.total = self._num_rollouts
        self._bar.refresh()

    def finish(self, *trajectories: Trajectory) -> None:
        """A rollout has returned these trajectories."""
        for trajectory in trajectories:
            for name, value in {"reward": trajectory.reward, **trajectory.metrics}.items():
                self._values.setdefault(name, []).append(float(value))
        self._show(1)

    def fail(self, error: Exception) -> None:
        """A rollout has failed. Raises the error if more have failed than are tolerated."""
        self._num_failed += 1
        self._show(1)
        allowed = self._max_exceptions
        if self._num_failed > (allowed * self._num_rollouts if isinstance(allowed, float) else allowed):
            raise error

    def count_tokens(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Add the tokens of an answer to the bar."""
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


current_tally: ContextVar[RolloutTally | None] = ContextVar("ludus_tally", default=None)
"""The tally of the current gathering."""


async def settle(member: Member, rollout: Rollout, tally: RolloutTally) -> Played | Exception:
    """Run one member; returns its result, or its exception, which is raised if it is not tolerated."""
    try:
        if isinstance(member, BaseException):
            raise member
        found: object = await play_rollout(member, rollout) if isinstance(member, Awaitable) else member
        returned = list(found) if isinstance(found, list | tuple) else [found]
        several = [each for each in returned if isinstance(each, Trajectory)]
        if not several or len(several) < len(returned):
            raise UserError(
                f"a rollout of the group returned {found!r:.100} of type {type(found).__name__}; it must return a "
                "Trajectory, or a tuple of them (or use capture_auto_trajectory or capture_yielded_trajectory)"
            )
    except Exception as error:
        tally.fail(error)
        return error
    tally.finish(*several)
    return several if isinstance(found, list | tuple) else several[0]


async def in_order(coroutines: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """All results in order; the first error cancels the others, and is raised unwrapped."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
