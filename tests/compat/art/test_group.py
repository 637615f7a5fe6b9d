"""Groups of trajectories: whole ones, and those made from rollouts that have still to be played."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.rollout import Rollout, current_rollout
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError


async def rollout(reward: float, *, after: int = 0) -> Trajectory:
    for _ in range(after):
        await asyncio.sleep(0)
    return Trajectory(reward=reward)


def test_a_group_from_awaitables_keeps_the_order_of_submission() -> None:
    """Whatever finishes first: the members stand as they were given, and the group is the one that was made."""

    async def main() -> None:
        group = TrajectoryGroup((rollout(k, after=5 - k) for k in range(5)), metadata={"row": 1})
        assert len(group.unplayed) == 5
        assert await group is group
        assert [each.reward for each in group] == [0, 1, 2, 3, 4] and len(group) == 5
        assert group.unplayed == () and await group is group
        assert group.metadata == {"row": 1}

    asyncio.run(main())


def test_a_group_that_was_not_awaited_says_so() -> None:
    """Reading its members would show nothing; it is an error with the way out."""

    async def main() -> None:
        group = TrajectoryGroup([rollout(1.0)])
        with pytest.raises(UserError, match="await it first"):
            list(group)
        with pytest.raises(UserError, match="await it first"):
            len(group)
        with pytest.raises(UserError, match="await it first"):
            copy.deepcopy(group)
        await group

    asyncio.run(main())


def test_each_member_is_a_rollout_of_its_own() -> None:
    """What is awaited inside knows which rollout it plays in; what was registered for its end has run once."""
    seen: list[Rollout | None] = []
    ended: list[tuple[int, str]] = []

    async def play(fails: bool) -> Trajectory:
        here = current_rollout()
        assert here is not None
        seen.append(await asyncio.create_task(inner()))

        async def note(error: BaseException | None) -> None:
            ended.append((here.member_idx, type(error).__name__))

        here.on_end(note)
        if fails:
            raise RuntimeError("lost")
        return Trajectory()

    async def inner() -> Rollout | None:
        return current_rollout()

    async def main() -> None:
        await TrajectoryGroup([play(False), play(False)])
        assert [each.member_idx for each in seen if each is not None] == [0, 1]
        assert current_rollout() is None
        assert sorted(ended) == [(0, "NoneType"), (1, "NoneType")]
        with pytest.raises(RuntimeError, match="lost"):
            await TrajectoryGroup([play(True)])
        assert ended[-1] == (0, "RuntimeError")

    asyncio.run(main())


def test_one_failure_alone_ends_the_others() -> None:
    """Where nobody tolerates it, the first exception rises and no sibling plays on."""
    finished: list[str] = []

    async def slow() -> Trajectory:
        await asyncio.sleep(3600)
        finished.append("slow")
        return Trajectory()

    async def fast() -> Trajectory:
        raise ValueError("broken")

    async def main() -> None:
        with pytest.raises(ValueError, match="broken"):
            await TrajectoryGroup([slow(), fast()])

    asyncio.run(main())
    assert finished == []


def test_cancelling_a_group_cancels_its_rollouts() -> None:
    """Cancellation is not a failure of a rollout; it rises, and the rollouts have ended."""
    events: list[str] = []

    async def play() -> Trajectory:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise
        return Trajectory()

    async def main() -> None:
        task = asyncio.ensure_future(TrajectoryGroup([play(), play()])._whole())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert events == ["cancelled", "cancelled"]

    asyncio.run(main())


def test_a_rollout_must_return_a_trajectory() -> None:
    """Another value is named with its type."""

    async def play() -> Any:
        return 1.0

    async def main() -> None:
        with pytest.raises(UserError, match=r"returned 1.0 of type float"):
            await TrajectoryGroup([play()])

    asyncio.run(main())


def test_a_group_keeps_lines() -> None:
    """As a trajectory does."""
    group = TrajectoryGroup([Trajectory()])
    group.log("played twice")
    assert group.logs == ["played twice"]


def test_a_whole_group_holds_exceptions_as_text() -> None:
    """They survive JSON with everything else; trajectories and exceptions may be mixed."""
    group = TrajectoryGroup(
        [Trajectory(reward=1), KeyError("a"), Trajectory(reward=2)],
        exceptions=[ValueError("b")],
        metadata={"task": "t"},
        metrics={"tries": 2},
        logs=["x"],
    )
    assert [each.type for each in group.exceptions] == ["ValueError", "KeyError"]
    read = TrajectoryGroup.model_validate(json.loads(group.model_dump_json()))
    assert read.model_dump(mode="json") == group.model_dump(mode="json")
    assert [each.reward for each in copy.deepcopy(read)] == [1, 2] and read.metadata == {"task": "t"}
    fewer = group.with_trajectories(group.trajectories[:1])
    assert len(fewer) == 1 and len(group) == 2 and fewer.exceptions == group.exceptions
