"""More groups play than a batch needs: the first complete ones make it, the rest goes on or is cancelled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.errors import ConfigError
from ludus.rollout.groups import TakenGroups
from ludus.rollout.mixture import Source
from ludus.rollout.pool import RolloutPool
from ludus.rollout.settings import RolloutSettings
from ludus.rollout.tasks import EpisodeTask, GroupStream
from ludus.types import Episode, Outcome, OutcomeKind, SessionRecord

ROWS = [{"n": number} for number in range(10)]
N_SAMPLES = 2


def episode(task: EpisodeTask, kind: OutcomeKind = "ok") -> Episode:
    session = SessionRecord(task.episode_id, (), ())
    rewards = {"t": 1.0} if kind == "ok" else {}
    return Episode(task.episode_id, task.task_id, task.group_id, session, rewards, Outcome(kind))


class Theatre:
    """Plays episodes that end when they are told to, as the runner does: cancelling one is an outcome."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Event] = {}
        self.played: list[str] = []

    async def play(self, task: EpisodeTask) -> Episode:
        self.played.append(task.episode_id)
        try:
            await self._end(task.episode_id).wait()
        except asyncio.CancelledError:
            return episode(task, "cancelled")
        return episode(task)

    def end(self, *groups: int, member: int | None = None) -> None:
        for group in groups:
            for idx in range(N_SAMPLES) if member is None else (member,):
                self._end(f"g{group:06d}-m{idx:02d}").set()

    def _end(self, episode_id: str) -> asyncio.Event:
        return self._ends.setdefault(episode_id, asyncio.Event())


def make_pool(play: Any, *, batch_size: int = 4, total_groups: int | None = None, **options: Any) -> RolloutPool:
    stream = GroupStream([Source(ROWS)], seed=1, shuffle=False)
    return RolloutPool(
        play,
        stream,
        RolloutSettings(**options),
        n_samples=N_SAMPLES,
        batch_size=batch_size,
        total_groups=total_groups,
    )


def ids(taken: TakenGroups) -> list[int]:
    return [int(group.id[1:]) for group in taken.groups]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_first_complete_groups_make_the_batch_and_the_rest_goes_on() -> None:
    """A quarter on top: with one slow group the batch is filled by the others; it is in the next one."""

    async def main() -> None:
        theatre = Theatre()
        async with make_pool(theatre.play, oversample=0.25, max_head_offpolicyness=1) as pool:
            theatre.end(0, 2, 3, 4)
            assert ids(await pool.take(4)) == [0, 2, 3, 4]
            pool.advance(1)
            assert pool.cursor.unconsumed[0] == 1 and pool.counts.num_running_groups == 9
            theatre.end(1, 5, 6, 7)
            assert ids(await pool.take(4)) == [1, 5, 6, 7]
        assert not any(item.mask == "unused" for item in pool.drain_nowait().discarded)

    asyncio.run(main())


def test_the_rest_is_cancelled_and_accounted_for() -> None:
    """In the synchronous schedule what is on top ends when the batch is full: what played is `cancelled`, what was
    complete is `unused`, and the next batch begins with new groups alone."""

    async def main() -> None:
        theatre = Theatre()
        async with make_pool(theatre.play, oversample=0.5, oversample_rest="cancel") as pool:
            await settle()
            theatre.end(1, member=0)
            theatre.end(0, 2, 3, 4, 5)
            await settle()
            first = await pool.take(4)
            assert ids(first) == [0, 2, 3, 4]
            assert pool.cursor.unconsumed == () and pool.counts.num_running_groups == 0
            assert pool.counts.num_accepted_groups == 4
            pool.advance(1)
            theatre.end(*range(6, 12))
            second = await pool.take(4)
            assert min(ids(second)) == 6 and pool.counts.num_accepted_groups == 8
            gone = [*first.discarded, *second.discarded, *pool.drain_nowait().discarded]
        masks = {item.episode.id: item.mask for item in gone}
        assert masks["g000001-m00"] == "unused" and masks["g000001-m01"] == "cancelled"
        assert masks["g000005-m00"] == masks["g000005-m01"] == "unused"

    asyncio.run(main())


def test_cancelling_leaves_what_later_batches_need() -> None:
    """Where rollouts run ahead only what is on top is cancelled, the groups that play the longest."""

    async def main() -> None:
        theatre = Theatre()
        options = {"oversample": 0.25, "oversample_rest": "cancel", "max_head_offpolicyness": 1}
        async with make_pool(theatre.play, **options) as pool:
            pool.resume_admission()
            assert pool.counts.num_running_groups == 9
            theatre.end(2, 3, 4, 5)
            assert ids(await pool.take(4)) == [2, 3, 4, 5]
            assert pool.cursor.unconsumed == (1, 6, 7, 8)
            pool.advance(1)
            assert pool.counts.num_running_groups == 9

    asyncio.run(main())


def test_the_last_batch_is_played_on_top_of_too() -> None:
    """A run that takes so many groups starts more at its end, and waits for no slow one."""

    async def main() -> None:
        theatre = Theatre()
        options = {"oversample": 0.25, "oversample_rest": "cancel"}
        async with make_pool(theatre.play, total_groups=4, **options) as pool:
            pool.resume_admission()
            assert pool.counts.num_running_groups == 5
            theatre.end(1, 2, 3, 4)
            assert ids(await pool.take(4)) == [1, 2, 3, 4]

    asyncio.run(main())


def test_a_group_that_is_cancelled_before_it_began_is_forgotten() -> None:
    """Nothing is counted for it, and places do not leak."""

    async def main() -> None:
        async def play(task: EpisodeTask) -> Episode:
            return episode(task)

        async with make_pool(play, oversample=1.0, oversample_rest="cancel", max_concurrent_rollouts=4) as pool:
            for version in range(20):
                assert len((await pool.take(4)).groups) == 4
                pool.advance(version + 1)
            await settle()
            assert pool.counts.num_running_episodes <= 4 + 2 * N_SAMPLES

    asyncio.run(main())


def test_the_rest_is_kept_where_it_may_be_trained() -> None:
    """Unless told otherwise; to ask for it where it may not is refused, with what helps."""
    assert not RolloutSettings(oversample=0.5).keeps_rest
    assert RolloutSettings(oversample=0.5, max_head_offpolicyness=1).keeps_rest
    assert not RolloutSettings(oversample=0.5, max_head_offpolicyness=1, oversample_rest="cancel").keeps_rest
    with pytest.raises(ConfigError, match="set max_head_offpolicyness to 1 or more, or oversample_rest to 'cancel'"):
        RolloutSettings(oversample=0.5, oversample_rest="keep")


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    share=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    rest=st.sampled_from(["keep", "cancel"]),
    ahead=st.integers(0, 2),
    concurrent=st.integers(3, 30),
)
def test_every_episode_leaves_once(seed: int, share: float, rest: str, ahead: int, concurrent: int) -> None:
    """Whatever ends in which order: each episode that began is in one batch, or discarded once, or drained; batches
    are full, no group is in two, and none that is kept is older than its schedule allows."""
    if share > 0 and rest == "keep":
        ahead = max(1, ahead)
    options = {"oversample": share, "oversample_rest": rest} if share else {}
    chance = random.Random(seed)
    played: list[str] = []

    async def play(task: EpisodeTask) -> Episode:
        played.append(task.episode_id)
        try:
            for _ in range(chance.choice([1, 1, 2, 3, 30])):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            return episode(task, "cancelled")
        return episode(task, chance.choice(["ok", "ok", "ok", "failed", "rejected"]))

    async def main() -> None:
        seen = list[TakenGroups]()
        pool = make_pool(
            play,
            batch_size=3,
            total_groups=12,
            max_head_offpolicyness=ahead,
            max_concurrent_rollouts=concurrent,
            max_consecutive_failures=10**6,
            min_members=1,
            **options,
        )
        async with pool:
            for version in range(4):
                seen.append(await pool.take(3))
                assert len(seen[-1].groups) == 3
                if version < 3:
                    pool.advance(version + 1)
        seen.append(pool.drain_nowait())
        left = Counter(one.id for taken in seen for group in taken.groups for one in group.episodes)
        left.update(item.episode.id for taken in seen for item in taken.discarded)
        assert left == Counter(played)

    asyncio.run(main())
