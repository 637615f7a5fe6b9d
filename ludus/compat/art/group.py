"""Groups of trajectories of one task, which are compared with each other; a group may be made from pending rollouts.

Knows: the order of rollouts, their results and exceptions.  Knows not: rewards' meaning, training.
Invariants: the order of a group is that of submission, whatever finishes first; cancelling cancels the rollouts, and
does not count as their failure.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import traceback
from collections.abc import Awaitable, Generator, Iterable, Iterator, Mapping
from typing import Any, Self

import pydantic

from ludus.compat.art.rollout import Rollout
from ludus.compat.art.tally import Member, RolloutTally, current_tally, in_order, settle
from ludus.compat.art.trajectory import Scalar, Trajectory, plain_values
from ludus.compat.overrides import count
from ludus.errors import UserError


class Failure(pydantic.BaseModel):
    """An exception that ended a rollout, as text."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException | Failure | Mapping[str, Any]) -> Failure:
        """From an exception, with its type, message and traceback, or from a stored failure."""
        if isinstance(error, BaseException):
            text = "".join(traceback.format_exception(error))
            return cls(type=type(error).__name__, message=str(error), traceback=text)
        return cls.model_validate(error)


class TrajectoryGroup(pydantic.BaseModel):
    """Trajectories of one task. A group of awaitables is complete when it was awaited, directly or by a gathering."""

    model_config = pydantic.ConfigDict(extra="forbid")

    trajectories: list[Trajectory] = pydantic.Field(default_factory=list)
    exceptions: list[Failure] = pydantic.Field(default_factory=list)
    """Exceptions of rollouts that returned no trajectory."""
    metadata: dict[str, Scalar] = pydantic.Field(default_factory=dict)
    metrics: dict[str, float | int | bool] = pydantic.Field(default_factory=dict)
    """Metrics of the group as a whole."""
    logs: list[str] = pydantic.Field(default_factory=list)
    _pending: list[Member] | None = pydantic.PrivateAttr(default=None)
    """Pending members, in order. None: the group is complete."""
    _playing: asyncio.Task[None] | None = pydantic.PrivateAttr(default=None)

    def __init__(
        self,
        trajectories: Iterable[Member | Mapping[str, Any]] = (),
        *,
        exceptions: Iterable[BaseException | Failure | Mapping[str, Any]] = (),
        metadata: Mapping[str, Scalar] | None = None,
        metrics: Mapping[str, float | int | bool] | None = None,
        logs: Iterable[str] | None = None,
    ) -> None:
        members: list[Any] = list(trajectories)
        is_pending = any(isinstance(member, Awaitable) for member in members)
        if is_pending:
            members = as_many("gconfig.n_samples", members)
        failures = [error for error in members if isinstance(error, BaseException) and not is_pending]
        super().__init__(
            trajectories=[] if is_pending else [each for each in members if not isinstance(each, BaseException)],
            exceptions=[Failure.of(error) for error in (*exceptions, *failures)],
            metadata=dict(metadata or {}),
            metrics=dict(metrics or {}),
            logs=list(logs or ()),
        )
        self._pending = members if is_pending else None

    @pydantic.field_serializer("metrics", "metadata")
    def _write_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return plain_values(values)

    def __repr__(self) -> str:
        if self._pending is not None:
            return f"TrajectoryGroup({len(self._pending)} to be played)"
        return f"TrajectoryGroup({len(self.trajectories)} trajectories, {len(self.exceptions)} exceptions)"

    __str__ = __repr__

    @property
    def unplayed(self) -> tuple[Member, ...]:
        """The pending members. Empty: the group is complete."""
        return tuple(self._pending or ())

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]  # a group is its trajectories
        self._check_whole()
        return iter(self.trajectories)

    def __len__(self) -> int:
        self._check_whole()
        return len(self.trajectories)

    def __bool__(self) -> bool:
        return True

    def __copy__(self) -> Self:
        self._check_whole()
        return super().__copy__()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        self._check_whole()
        return super().__deepcopy__(memo)

    def log(self, message: str) -> None:
        """Keep a line with the group."""
        self.logs.append(message)

    def with_trajectories(self, trajectories: Iterable[Trajectory]) -> Self:
        """A copy with these trajectories, and everything else unchanged."""
        found = copy.copy(self)
        found.trajectories = list(trajectories)
        return found

    def __await__(self) -> Generator[Any, None, Self]:
        return self._whole().__await__()

    async def _whole(self) -> Self:
        if self._pending is not None:
            if self._playing is None:
                self._playing = asyncio.ensure_future(self._play(self._pending, current_tally.get() or RolloutTally()))
            try:
                await self._playing
            except asyncio.CancelledError:
                self._playing.cancel()
                await asyncio.gather(self._playing, return_exceptions=True)
                raise
        return self

    async def _play(self, members: list[Member], tally: RolloutTally) -> None:
        group_idx = next(tally.group_idxs)
        tally.begin(len(members))
        try:
            settled = await in_order(
                settle(member, Rollout(tally.gathering, group_idx, member_idx), tally)
                for member_idx, member in enumerate(members)
            )
        finally:
            close_unplayed(members)
        played = [each if isinstance(each, list) else [each] for each in settled if not isinstance(each, Exception)]
        self.trajectories = [trajectory for several in played for trajectory in several]
        self.exceptions = [*self.exceptions, *(Failure.of(each) for each in settled if isinstance(each, Exception))]
        self._pending = None

    def _check_whole(self) -> None:
        if self._pending is not None:
            raise UserError(
                f"this group's {len(self._pending)} rollouts have not been played: await it first, or give it to "
                "gather_trajectory_groups"
            )


def as_many(key: str, given: Iterable[Any]) -> list[Any]:
    """The items to run: at most as many as given by `ludus run --set KEY=…`; the others are never started."""
    members = list(given)
    num_played = count(key)
    if num_played is not None:
        close_unplayed(members[num_played:])
    return members[:num_played]


def close_unplayed(members: Iterable[object]) -> None:
    """Close coroutines that were never started because another one failed, to avoid warnings."""
    for member in members:
        if isinstance(member, TrajectoryGroup):
            close_unplayed(member.unplayed)
        elif inspect.iscoroutine(member):
            member.close()  # no effect on one that has ended
