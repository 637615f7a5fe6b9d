"""What becomes of rollouts that are played together, counted and shown on a bar.

Knows: what they returned or raised, how many may fail.  Knows not: groups, models, training.
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
    """What has become of the rollouts of one gathering, on a bar."""

    def __init__(
        self, bar: Bar | None = None, *, max_exceptions: int | float = 0, max_metrics: int | None = None
    ) -> None:
        """max_exceptions: so many rollouts may fail, or this share of them if it is a float.  max_metrics: most that
        the bar shows. None: all."""
        self.gathering = Gathering()
        self.group_idxs = count()
        """The next one of a group that begins to play."""
        self._bar = Bar() if bar is None else bar
        self._max_exceptions = max_exceptions
        self._max_metrics = max_metrics
        self._num_rollouts = 0
        self._num_failed = 0
        self._num_tokens: int | None = None
        """None: they are not counted."""
        self._values: dict[str, list[float]] = {}

    def begin(self, num_rollouts: int) -> None:
        """So many rollouts start."""
        self._num_rollouts += num_rollouts
        self._bar.total = self._num_rollouts
        self._bar.refresh()

    def finish(self, *trajectories: Trajectory) -> None:
        """A rollout has returned them."""
        for trajectory in trajectories:
            for name, value in {"reward": trajectory.reward, **trajectory.metrics}.items():
                self._values.setdefault(name, []).append(float(value))
        self._show(1)

    def fail(self, error: Exception) -> None:
        """One has raised. Raises the error if that is one too many."""
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


current_tally: ContextVar[RolloutTally | None] = ContextVar("ludus_tally", default=None)
"""Of the gathering that plays here."""


async def settle(member: Member, rollout: Rollout, tally: RolloutTally) -> Played | Exception:
    """What one member returned or raised; raises it if that is not tolerated."""
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
    """All results in order; the first error ends the others and rises as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
