"""Trajectories of one task, which are compared with each other; also made from rollouts that have still to be played.

Knows: the order in which rollouts were given, what they returned or raised.  Knows not: rewards' meaning, training.
Invariants: the order of a group is that of submission, whatever finishes first; cancelling cancels the rollouts and is
never counted as their failure.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import traceback
from collections.abc import Awaitable, Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, Self

import pydantic

from ludus.compat.art.rollout import Gathering, Rollout, start_rollout
from ludus.compat.art.trajectory import Scalar, Trajectory
from ludus.errors import UserError

Member = Trajectory | BaseException | Awaitable[Trajectory]


class Failure(pydantic.BaseModel):
    """An exception that ended a rollout, as text."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The exception's own type, message and traceback."""
        text = "".join(traceback.format_exception(error))
        return cls(type=type(error).__name__, message=str(error), traceback=text)


class Tally(Protocol):
    """Counts what becomes of rollouts that are gathered together."""

    gathering: Gathering

    def next_group_idx(self) -> int: ...

    def begin(self, num_rollouts: int) -> None:
        """So many rollouts start."""

    def finish(self, trajectory: Trajectory) -> None:
        """One has returned."""

    def fail(self, error: Exception) -> None:
        """One has raised. Raises the error if that is one too many."""


current_tally: ContextVar[Tally | None] = ContextVar("ludus_tally", default=None)


class TrajectoryGroup(pydantic.BaseModel):
    """Trajectories of one task. Made from awaitables, it is whole once it was awaited, alone or by a gathering."""

    model_config = pydantic.ConfigDict(extra="forbid")

    trajectories: list[Trajectory] = pydantic.Field(default_factory=list)
    exceptions: list[Failure] = pydantic.Field(default_factory=list)
    """Of rollouts that gave no trajectory."""
    metadata: dict[str, Scalar] = pydantic.Field(default_factory=dict)
    metrics: dict[str, float | int | bool] = pydantic.Field(default_factory=dict)
    """Of the group as a whole."""
    logs: list[str] = pydantic.Field(default_factory=list)
    _pending: list[Member] | None = pydantic.PrivateAttr(default=None)
    """Members to be played, in order. None: the group is whole."""
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
        failures = [error for error in members if isinstance(error, BaseException) and not is_pending]
        super().__init__(
            trajectories=[] if is_pending else [each for each in members if not isinstance(each, BaseException)],
            exceptions=[_failure(error) for error in (*exceptions, *failures)],
            metadata=dict(metadata or {}),
            metrics=dict(metrics or {}),
            logs=list(logs or ()),
        )
        self._pending = members if is_pending else None

    def __repr__(self) -> str:
        if self._pending is not None:
            return f"TrajectoryGroup({len(self._pending)} to be played)"
        return f"TrajectoryGroup({len(self.trajectories)} trajectories, {len(self.exceptions)} exceptions)"

    __str__ = __repr__

    @property
    def is_pending(self) -> bool:
        """Its rollouts have not all been played."""
        return self._pending is not None

    @property
    def unplayed(self) -> tuple[Member, ...]:
        """The members that are still to be played."""
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

    def with_trajectories(self, trajectories: Iterable[Trajectory]) -> Self:
        """A copy that holds these trajectories, and everything else as it is."""
        found = copy.copy(self)
        found.trajectories = list(trajectories)
        return found

    def __await__(self) -> Generator[Any, None, Self]:
        return self._whole().__await__()

    async def _whole(self) -> Self:
        if self._pending is not None:
            if self._playing is None:
                self._playing = asyncio.ensure_future(self._play(self._pending, current_tally.get()))
            try:
                await self._playing
            except asyncio.CancelledError:
                self._playing.cancel()
                await asyncio.gather(self._playing, return_exceptions=True)
                raise
        return self

    async def _play(self, members: list[Member], tally: Tally | None) -> None:
        group_idx = 0 if tally is None else tally.next_group_idx()
        gathering = Gathering() if tally is None else tally.gathering
        if tally is not None:
            tally.begin(len(members))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(settle(member, Rollout(gathering, group_idx, member_idx), tally))
                    for member_idx, member in enumerate(members)
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            close_unplayed(members)
        settled = [task.result() for task in tasks]
        self.trajectories = [each for each in settled if isinstance(each, Trajectory)]
        self.exceptions = [*self.exceptions, *(_failure(each) for each in settled if isinstance(each, Exception))]
        self._pending = None

    def _check_whole(self) -> None:
        if self._pending is not None:
            raise UserError(
                f"this group's {len(self._pending)} rollouts have not been played: await it first, or give it to "
                "gather_trajectory_groups"
            )


async def settle(member: Member, rollout: Rollout, tally: Tally | None) -> Trajectory | Exception:
    """What one member returned or raised; raises it if nobody tolerates that."""
    try:
        if isinstance(member, BaseException):
            raise member
        found: object = await start_rollout(member, rollout) if isinstance(member, Awaitable) else member
        if not isinstance(found, Trajectory):
            raise UserError(
                f"a rollout of the group returned {found!r:.100} of type {type(found).__name__}; it must return a "
                "Trajectory (or use capture_auto_trajectory or capture_yielded_trajectory)"
            )
    except Exception as error:
        if tally is None:
            raise
        tally.fail(error)
        return error
    if tally is not None:
        tally.finish(found)
    return found


def close_unplayed(members: Iterable[object]) -> None:
    """Coroutines that never started, because another one failed first, end without a warning."""
    for member in members:
        if isinstance(member, TrajectoryGroup):
            close_unplayed(member.unplayed)
        elif inspect.iscoroutine(member):
            member.close()  # does nothing to one that has ended


def _failure(error: BaseException | Failure | Mapping[str, Any]) -> Failure:
    if isinstance(error, BaseException):
        return Failure.of(error)
    return error if isinstance(error, Failure) else Failure.model_validate(error)
