"""Gathering rollouts: order, what may fail, what is kept of a group, batches that overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from ludus.compat.art.batching import trajectory_group_batches
from ludus.compat.art.gathering import gather_trajectories, gather_trajectory_groups
from ludus.compat.art.group import TrajectoryGroup
from ludus.compat.art.rollout import current_rollout
from ludus.compat.art.trajectory import Trajectory
from ludus.errors import UserError


async def rollout(reward: float, *, fails: bool = False, after: int = 0) -> Trajectory:
    for _ in range(after):
        await asyncio.sleep(0)
    if fails:
        raise RuntimeError(f"rollout {reward} is lost")
    return Trajectory(reward=reward)


def rewards(groups: list[TrajectoryGroup]) -> list[list[float]]:
    return [[each.reward for each in group] for group in groups]


def test_groups_come_in_order_of_submission() -> None:
    """Groups and members alike, whatever finishes first; every rollout has numbers of its own."""
    seen: set[tuple[int, int]] = set()

    async def numbered(reward: float, after: int) -> Trajectory:
        here = current_rollout()
        assert here is not None
        seen.add((here.group_idx, here.member_idx))
        return await rollout(reward, after=after)

    async def later(group: TrajectoryGroup) -> TrajectoryGroup:
        return await group

    async def main() -> None:
        made = (TrajectoryGroup(numbered(10 * g + m, 9 - 3 * g - m) for m in range(3)) for g in range(3))
        groups = await gather_trajectory_groups(
            [next(made), later(next(made)), next(made)], pbar_desc="gather", pbar_total_completion_tokens=True
        )
        assert rewards(groups) == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
        assert len(seen) == 9

    asyncio.run(main())


@pytest.mark.parametrize("tolerated", [2, 0.34])
def test_so_many_rollouts_may_fail(tolerated: float) -> None:
    """Two of six: they stay in their groups as exceptions, the others are trained; a third one rises."""

    def groups(num_failing: int) -> Iterator[TrajectoryGroup]:
        for g in range(2):
            yield TrajectoryGroup(rollout(m, fails=3 * g + m < num_failing) for m in range(3))

    async def main() -> None:
        found = await gather_trajectory_groups(groups(2), max_exceptions=tolerated)
        assert rewards(found) == [[2], [0, 1, 2]]
        assert [each.message for each in found[0].exceptions] == ["rollout 0 is lost", "rollout 1 is lost"]
        assert "RuntimeError: rollout 0 is lost" in found[0].exceptions[0].traceback
        with pytest.raises(RuntimeError, match="rollout 2 is lost"):
            await gather_trajectory_groups(groups(3), max_exceptions=tolerated)

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [-1, 1.5, -0.1])
def test_a_tolerance_that_means_nothing_is_refused(wrong: float) -> None:
    """Counts are whole numbers, shares lie between 0 and 1."""
    with pytest.raises(UserError, match="max_exceptions"):
        asyncio.run(gather_trajectory_groups([], max_exceptions=wrong))


def test_cancellation_is_no_failure() -> None:
    """However many failures are tolerated, cancelling a gathering cancels it."""

    async def never() -> Trajectory:
        await asyncio.sleep(3600)
        return Trajectory()

    async def main() -> None:
        task = asyncio.ensure_future(gather_trajectory_groups([TrajectoryGroup([never()])], max_exceptions=1.0))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


async def doubled(group: TrajectoryGroup) -> Any:
    return group.with_trajectories([Trajectory(reward=2 * each.reward) for each in group])


async def one_dropped(group: TrajectoryGroup) -> Any:
    return None if group.trajectories[0].reward == 0 else [group, group]


@pytest.mark.parametrize(
    ("after_each", "expected"),
    [(doubled, [[0], [2]]), (one_dropped, [[1], [1]]), (lambda group: group, [[0], [1]])],
)
def test_what_is_kept_of_a_group(after_each: Callable[[TrajectoryGroup], Any], expected: list[list[float]]) -> None:
    """A group, several, or none, from a function or a coroutine; None leaves the group out."""
    groups = (TrajectoryGroup([rollout(reward)]) for reward in (0, 1))
    found = asyncio.run(gather_trajectory_groups(groups, after_each=after_each))
    assert rewards(found) == expected


def test_a_judge_that_fails_is_one_failure() -> None:
    """Its group is left out if that is tolerated; without tolerance its error rises."""

    def judge(group: TrajectoryGroup) -> TrajectoryGroup:
        if group.trajectories[0].reward == 0:
            raise RuntimeError("no verdict")
        return group

    async def main(tolerated: int) -> list[TrajectoryGroup]:
        groups = (TrajectoryGroup([rollout(reward)]) for reward in (0, 1))
        return await gather_trajectory_groups(groups, after_each=judge, max_exceptions=tolerated)

    assert rewards(asyncio.run(main(1))) == [[1]]
    with pytest.raises(RuntimeError, match="no verdict"):
        asyncio.run(main(0))


def test_after_each_must_return_a_group() -> None:
    """A number is named, with what is allowed."""
    with pytest.raises(UserError, match="after_each returned 3"):
        asyncio.run(gather_trajectory_groups([TrajectoryGroup([rollout(1)])], after_each=lambda _: 3))


def test_a_flat_list_keeps_what_was_raised() -> None:
    """Trajectories and tolerated exceptions in the order of submission."""

    async def main(tolerated: float) -> list[Trajectory | BaseException]:
        given: list[Awaitable[Trajectory]] = [rollout(0, after=3), rollout(1, fails=True), rollout(2)]
        return await gather_trajectories(given, max_exceptions=tolerated)

    first, second, third = asyncio.run(main(1))
    assert isinstance(first, Trajectory) and isinstance(third, Trajectory) and (first.reward, third.reward) == (0, 2)
    assert isinstance(second, RuntimeError)
    with pytest.raises(RuntimeError):
        asyncio.run(main(0.1))


def test_batches_overlap_within_their_bound() -> None:
    """Later batches play while one is used, never more than the bound; they come in order, after those skipped."""
    playing: set[int] = set()
    most: list[int] = []
    made: list[int] = []

    async def play(number: int) -> Trajectory:
        playing.add(number)
        most.append(len(playing))
        for _ in range(3):
            await asyncio.sleep(0)
        playing.discard(number)
        return Trajectory(reward=number)

    def groups() -> Iterator[TrajectoryGroup]:
        for number in range(7):
            made.append(number)
            yield TrajectoryGroup([play(number)])

    async def main() -> list[list[list[float]]]:
        found = []
        async for batch in trajectory_group_batches(
            groups(), batch_size=2, max_concurrent_batches=2, skip_batches=1, pbar_desc=None
        ):
            found.append(rewards(batch))
            assert len(made) <= 2 * (1 + len(found) + 1)
        return found

    assert asyncio.run(main()) == [[[2.0], [3.0]], [[4.0], [5.0]], [[6.0]]]
    assert max(most) == 4


def test_leaving_batches_early_cancels_what_plays() -> None:
    """Nobody plays on for a loop that has ended."""
    ended: list[str] = []

    async def play(number: int) -> Trajectory:
        try:
            await asyncio.sleep(3600 if number else 0)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return Trajectory()

    async def main() -> None:
        batches = trajectory_group_batches((TrajectoryGroup([play(number)]) for number in range(3)), batch_size=1)
        async for _ in batches:
            break
        await batches.aclose()  # type: ignore[attr-defined]
        assert ended == ["cancelled", "cancelled"]

    asyncio.run(main())
