"""Groups of episodes: replayed, rejected, bounded, in the order of their ids whatever finishes first."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from ludus.episodes.ledger import MaskReason
from ludus.errors import UserError
from ludus.rollout.curriculum import Curriculum
from ludus.rollout.groups import Cursor, TakenGroups
from ludus.rollout.mixture import Source
from ludus.rollout.pool import RolloutPool
from ludus.rollout.settings import CurriculumSettings, RolloutSettings
from ludus.rollout.tasks import EpisodeTask, GroupStream, GroupTask
from ludus.types import Episode, Group, Outcome, OutcomeKind, SessionRecord

ROWS = [{"n": number} for number in range(100)]
Play = Callable[[EpisodeTask], Awaitable[Episode]]


def episode(task: EpisodeTask, kind: OutcomeKind = "ok", reason: str = "") -> Episode:
    return Episode(
        id=task.episode_id,
        task_id=task.task_id,
        group_id=task.group_id,
        session=SessionRecord(task.episode_id, (), ()),
        rewards={"t": 1.0} if kind == "ok" else {},
        outcome=Outcome(kind, reason),
    )


async def succeed(task: EpisodeTask) -> Episode:
    return episode(task)


def make_pool(
    play: Play, *, batch_size: int = 2, n_samples: int = 3, group_filter: Any = None, **settings: Any
) -> RolloutPool:
    return RolloutPool(
        play,
        GroupStream([Source(ROWS)], seed=1, shuffle=False),
        RolloutSettings(**settings),
        n_samples=n_samples,
        batch_size=batch_size,
        group_filter=group_filter,
    )


def test_a_batch_is_ordered_by_id_whatever_finishes_first() -> None:
    """Groups that finish in reverse order are handed on in the order of their ids."""

    async def main() -> list[str]:
        finished = {f"g{number:06d}": asyncio.Event() for number in range(3)}

        async def play(task: EpisodeTask) -> Episode:
            number = int(task.group_id[1:])
            if number < 2:
                await finished[f"g{number + 1:06d}"].wait()
            if task.episode_id.endswith("m00"):
                finished[task.group_id].set()
            return episode(task)

        async with make_pool(play, batch_size=3) as pool:
            return [group.id for group in (await pool.take(3)).groups]

    assert asyncio.run(main()) == ["g000000", "g000001", "g000002"]


def test_a_failed_member_is_replayed_and_its_siblings_stay() -> None:
    """One failure costs one replay under another id and seed; the failed attempt is discarded as failed."""
    seeds: dict[str, int] = {}

    async def play(task: EpisodeTask) -> Episode:
        seeds[task.episode_id] = task.seed
        return episode(task, "failed" if task.episode_id == "g000000-m01" else "ok")

    async def main() -> Any:
        async with make_pool(play, batch_size=1) as pool:
            return await pool.take(1)

    taken = asyncio.run(main())
    assert [member.id for member in taken.groups[0].episodes] == ["g000000-m00", "g000000-m01-r1", "g000000-m02"]
    assert [(item.episode.id, item.mask) for item in taken.discarded] == [("g000000-m01", "failed")]
    assert seeds["g000000-m01"] != seeds["g000000-m01-r1"]


@pytest.mark.parametrize(("kind", "is_replayed"), [("rejected", False), ("truncated", False), ("timeout", True)])
def test_only_failures_and_timeouts_are_replayed(kind: OutcomeKind, is_replayed: bool) -> None:
    """An episode that the agent rejected, or that ended without a reward, is not tried again."""
    attempts: Counter[str] = Counter()

    async def play(task: EpisodeTask) -> Episode:
        member = task.episode_id.split("-")[1]
        attempts[member] += 1
        return episode(task, kind if member == "m01" else "ok")

    async def main() -> int:
        async with make_pool(play, batch_size=1) as pool:
            return len((await pool.take(1)).groups[0].episodes)

    assert asyncio.run(main()) == 2
    assert attempts["m01"] == (2 if is_replayed else 1)


def test_what_is_lost_is_played_again_until_it_ends() -> None:
    """A lost episode is no failure: it is played again also without retries, with the same seed, and many in a row stop
    nothing."""
    lost = 20
    attempts: Counter[str] = Counter()
    seeds: dict[str, set[int]] = defaultdict(set)

    async def play(task: EpisodeTask) -> Episode:
        member = task.episode_id.split("-")[1]
        attempts[member] += 1
        seeds[member].add(task.seed)
        return episode(task, "lost" if member == "m01" and attempts["m01"] <= lost else "ok")

    async def main() -> TakenGroups:
        async with make_pool(play, batch_size=1, retries=0, max_consecutive_failures=2) as pool:
            return await pool.take(1)

    taken = asyncio.run(main())
    assert len(taken.groups[0].episodes) == 3
    assert [item.mask for item in taken.discarded] == ["lost"] * lost
    assert all(len(seeds_of) == 1 for seeds_of in seeds.values()) and seeds["m00"] != seeds["m01"]


def test_a_group_with_too_few_survivors_is_rejected_and_replaced() -> None:
    """The survivor of a group of one is discarded as small_group, and the next row takes the group's place."""

    async def play(task: EpisodeTask) -> Episode:
        is_lost = task.group_id == "g000000" and "m02" not in task.episode_id
        return episode(task, "rejected" if is_lost else "ok")

    async def main() -> Any:
        async with make_pool(play) as pool:
            return await pool.take(2)

    taken = asyncio.run(main())
    assert [group.id for group in taken.groups] == ["g000001", "g000002"]
    masks = {item.episode.id: item.mask for item in taken.discarded}
    assert masks == {"g000000-m00": "rejected", "g000000-m01": "rejected", "g000000-m02": "small_group"}


def test_groups_that_the_judge_refuses_are_replaced() -> None:
    """Dynamic sampling: a flat group is discarded whole, with the judge's reason."""

    def group_filter(group: Group) -> MaskReason | None:
        return "zero_advantage" if group.id == "g000001" else None

    async def main() -> Any:
        async with make_pool(succeed, group_filter=group_filter) as pool:
            return await pool.take(2)

    taken = asyncio.run(main())
    assert [group.id for group in taken.groups] == ["g000000", "g000002"]
    assert Counter(item.mask for item in taken.discarded) == {"zero_advantage": 3}


def test_a_judge_that_raises_stops_the_rollouts_and_costs_no_token() -> None:
    """Its error reaches whoever takes the next batch; the group's episodes are accounted for."""

    def group_filter(group: Group) -> MaskReason | None:
        raise ZeroDivisionError(group.id)

    async def main() -> Any:
        pool = make_pool(succeed, batch_size=1, group_filter=group_filter)
        async with pool:
            with pytest.raises(ZeroDivisionError):
                await pool.take(1)
        return pool.drain_nowait()

    left = asyncio.run(main())
    assert {item.mask for item in left.discarded} == {"unused"}
    assert {f"g000000-m0{idx}" for idx in range(3)} <= {item.episode.id for item in left.discarded}


def test_no_more_episodes_play_at_once_than_allowed() -> None:
    """max_concurrent_rollouts bounds episodes, and is reached."""
    playing = most = 0

    async def play(task: EpisodeTask) -> Episode:
        nonlocal playing, most
        playing += 1
        most = max(most, playing)
        await asyncio.sleep(0)
        playing -= 1
        return episode(task)

    async def main() -> None:
        async with make_pool(play, batch_size=8, max_concurrent_rollouts=5) as pool:
            await pool.take(8)

    asyncio.run(main())
    assert most == 5


def test_the_synchronous_schedule_waits_for_new_weights() -> None:
    """After a batch nothing plays until `advance` says that its weights are published."""
    started: list[str] = []

    async def play(task: EpisodeTask) -> Episode:
        started.append(task.group_id)
        return episode(task)

    async def main() -> None:
        async with make_pool(play) as pool:
            await pool.take(2)
            for _ in range(20):
                await asyncio.sleep(0)
            assert set(started) == {"g000000", "g000001"} and pool.cursor.unconsumed == ()
            pool.advance(1)
            assert pool.cursor.unconsumed == (2, 3)
            assert [group.id for group in (await pool.take(2)).groups] == ["g000002", "g000003"]

    asyncio.run(main())


def test_consecutive_failures_stop_the_rollouts_with_the_first_reason() -> None:
    """The error names how many failed, the setting, and the first failure's reason."""

    async def play(task: EpisodeTask) -> Episode:
        return episode(task, "failed", f"Traceback of {task.episode_id}")

    async def main() -> None:
        async with make_pool(play, max_consecutive_failures=5) as pool:
            await pool.take(2)

    with pytest.raises(
        UserError, match=r"5 episodes in a row failed.*max_consecutive_failures.*Traceback of g000000-m00"
    ):
        asyncio.run(main())


def test_a_filter_that_rejects_everything_stops_the_rollouts() -> None:
    """Groups rejected for ever are an error, and not an endless run."""

    async def play(task: EpisodeTask) -> Episode:
        return episode(task, "rejected", "the agent returned None")

    async def main() -> None:
        async with make_pool(play) as pool:
            await pool.take(2)

    with pytest.raises(UserError, match=r"no batch can be filled.*rejected: the agent returned None"):
        asyncio.run(main())


def test_a_fault_of_the_machinery_reaches_whoever_takes() -> None:
    """What is not an agent's fault, such as a full disk, is raised by take()."""

    async def play(task: EpisodeTask) -> Episode:
        raise UserError("disk full")

    async def main() -> None:
        async with make_pool(play) as pool:
            await pool.take(2)

    with pytest.raises(UserError, match="disk full"):
        asyncio.run(main())


@pytest.mark.parametrize("fault", ["disk", "failures", "filter", "experts"])
def test_a_fault_takes_no_group_out_of_the_run(fault: str) -> None:
    """Whatever stops the rollouts, and whenever the place is asked for: who goes on from there plays every group that
    is in no batch, those too of which the fault took the last member."""

    async def play(task: EpisodeTask) -> Episode:
        if task.group_id != "g000000" and fault in ("disk", "failures"):
            if fault == "disk":
                raise UserError("disk full")
            return episode(task, "failed")
        return episode(task)

    def group_filter(group: Group) -> MaskReason | None:
        if fault == "filter" and group.id != "g000000":
            raise ZeroDivisionError(group.id)
        return None

    def demonstrate(task: GroupTask) -> tuple[Episode, ...]:
        if fault == "experts" and task.group_id != "g000000":
            raise UserError("the row has no expert")
        return ()

    async def main() -> Cursor:
        settings = RolloutSettings(max_consecutive_failures=2, retries=0)
        stream = GroupStream([Source(ROWS)], seed=1, shuffle=False)
        async with RolloutPool(
            play, stream, settings, n_samples=2, batch_size=2, group_filter=group_filter, demonstrate=demonstrate
        ) as pool:
            with pytest.raises((UserError, ZeroDivisionError)):
                await pool.take(2)
            for _ in range(10):  # saving takes its time
                await asyncio.sleep(0)
            return pool.cursor

    cursor = asyncio.run(main())
    assert cursor.unconsumed == tuple(range(cursor.next_ordinal)) and cursor.next_ordinal >= 2


def test_leaving_cancels_episodes_and_accounts_for_them() -> None:
    """Episodes that still play when the pool is left end as cancelled, and are drained as such."""

    async def play(task: EpisodeTask) -> Episode:
        if task.group_id == "g000000":
            return episode(task)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return episode(task, "cancelled")

    async def main() -> None:
        async with make_pool(play, max_concurrent_rollouts=6) as pool:
            await pool.take(1)
        rest = pool.drain_nowait()
        assert rest.groups == ()
        assert Counter(item.mask for item in rest.discarded) == {"cancelled": 3}

    asyncio.run(main())


def test_what_is_given_back_waits_again() -> None:
    """Groups that no step has learned from are begun and not consumed, and come first with the next take."""

    async def main() -> None:
        async with make_pool(succeed) as pool:
            first = await pool.take(2)
            assert 0 not in pool.cursor.unconsumed
            pool.give_back(first)
            assert {0, 1} <= set(pool.cursor.unconsumed)
            assert await pool.take(2) == first

    asyncio.run(main())


def test_a_curriculum_learns_of_rejected_groups_and_not_of_small_ones() -> None:
    """A row whose group was refused rests, one whose members failed does not; and success that nobody reports stops
    the run when the next batch is asked for."""

    def pool_of(play: Play, metric: str) -> RolloutPool:
        curriculum = Curriculum(CurriculumSettings(solved=1.0, metric=metric))
        stream = GroupStream([Source(ROWS)], seed=1, shuffle=False, curriculum=curriculum)
        settings = RolloutSettings(retries=0)
        return RolloutPool(play, stream, settings, n_samples=2, batch_size=2, group_filter=refuse)

    def refuse(group: Group) -> MaskReason | None:
        return "not_accepted" if group.task_id == "row0" else None

    async def play(task: EpisodeTask) -> Episode:
        kind: OutcomeKind = "failed" if task.task_id == "row1" else "ok"
        return replace(episode(task, kind), reward=float(task.task_id != "row3"))

    async def main(metric: str) -> Cursor:
        async with pool_of(play, metric) as pool:
            taken = await pool.take(2)
            assert taken.skipped == {"solved": 0, "hopeless": 0}
            return pool.cursor

    curriculum = asyncio.run(main("reward")).curriculum
    assert curriculum is not None and curriculum.streaks.keys() == {"row0", "row2"}
    with pytest.raises(UserError, match="metric='success' is reported by no episode of row"):
        asyncio.run(main("success"))


def test_a_curriculum_leaves_the_greedy_member_out() -> None:
    """Rows that every member that was drawn has solved rest, though the likeliest answer fails."""
    curriculum = Curriculum(CurriculumSettings(solved=1.0, metric="reward"))
    stream = GroupStream([Source(ROWS)], seed=1, shuffle=False, curriculum=curriculum)

    async def play(task: EpisodeTask) -> Episode:
        return replace(episode(task), reward=float(not task.is_greedy))

    async def main() -> None:
        async with RolloutPool(play, stream, RolloutSettings(), n_samples=2, batch_size=2, with_greedy=True) as pool:
            assert [len(group.episodes) for group in (await pool.take(2)).groups] == [3, 3]

    asyncio.run(main())
    assert {"row0", "row1"} <= curriculum.state.streaks.keys()
