"""Groups that wait or play while weights move on: the oldest are taken first, and none is lost to age."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from ludus.episodes.export import NO_BOUNDS, TokenBounds
from ludus.rollout.groups import TakenGroups, WaitingGroups
from ludus.rollout.mixture import Source
from ludus.rollout.pool import RolloutPool
from ludus.rollout.settings import RolloutSettings
from ludus.rollout.tasks import EpisodeTask, GroupStream
from ludus.types import Episode, Group, Message, Node, Outcome, Sampled, Sampling, SessionRecord, Turn

ROWS = [{"n": number} for number in range(10)]
NUM_TURNS = 3


class Players:
    """Plays episodes of three turns, each sampled by the weights of its time; a turn ends when it is told to."""

    def __init__(self) -> None:
        self.pool: RolloutPool | None = None
        self._waiting: dict[str, asyncio.Event] = {}

    async def play(self, task: EpisodeTask) -> Episode:
        versions = []
        for _ in range(NUM_TURNS):
            assert self.pool is not None
            versions.append(self.pool.counts.version)
            self._waiting[task.group_id] = asyncio.Event()
            await self._waiting[task.group_id].wait()
        return episode(task, versions)

    @property
    def groups(self) -> list[int]:
        """Those that play a turn now."""
        return [int(group[1:]) for group, event in self._waiting.items() if not event.is_set()]

    async def end_turn(self, *groups: int) -> None:
        for group in groups:
            self._waiting[f"g{group:06d}"].set()
        for _ in range(20):
            await asyncio.sleep(0)

    async def end(self, *groups: int) -> None:
        for _ in range(NUM_TURNS):
            await self.end_turn(*groups)


def episode(task: EpisodeTask, versions: list[int]) -> Episode:
    nodes = [Node(None, (1,))]
    turns = []
    for idx, version in enumerate(versions):
        nodes.append(Node(idx, (2,), f"t{idx}"))
        before = f"t{idx - 1}" if idx else None
        sampled = Sampled((2,), (-1.0,), (version,), "stop")
        turns.append(Turn(f"t{idx}", idx + 1, before, before, None, (), Message("assistant", ""), sampled, Sampling()))
    session = SessionRecord(task.episode_id, tuple(nodes), tuple(turns))
    return Episode(task.episode_id, task.task_id, task.group_id, session, {"t2": 1.0}, Outcome("ok"))


def run(main: Callable[[Players, RolloutPool], Coroutine[Any, Any, None]], **options: Any) -> None:
    """`main` with groups of one episode, two of them a batch."""

    async def inside() -> None:
        players = Players()
        stream, settings = GroupStream([Source(ROWS)], seed=1, shuffle=False), RolloutSettings(min_members=1, **options)
        async with RolloutPool(players.play, stream, settings, n_samples=1, batch_size=2) as pool:
            players.pool = pool
            await main(players, pool)

    asyncio.run(inside())


def ids(taken: TakenGroups) -> list[int]:
    return [int(group.id[1:]) for group in taken.groups]


async def taking(pool: RolloutPool) -> asyncio.Task[TakenGroups]:
    task = asyncio.ensure_future(pool.take(2))
    for _ in range(20):
        await asyncio.sleep(0)
    return task


def test_the_groups_that_were_begun_first_are_taken_first() -> None:
    """Of the complete groups the oldest make the batch, whatever was complete first."""

    async def main(players: Players, pool: RolloutPool) -> None:
        first = await taking(pool)
        await players.end(3, 2)
        assert ids(await first) == [2, 3]
        pool.advance(1)
        await asyncio.sleep(0)
        for group in (5, 4, 1, 0):
            await players.end(group)
        assert ids(await pool.take(2)) == [0, 1]

    run(main, max_head_offpolicyness=2)


def test_a_batch_waits_for_what_the_next_could_not_train() -> None:
    """The first turns of a long episode are as good as its last ones: no newer group takes its slot in the last batch
    that may train them. With AReaL's meaning of the bound none is waited for."""

    async def main(players: Players, pool: RolloutPool) -> None:
        first = await taking(pool)
        await players.end(1, 2)
        assert ids(await first) == [1, 2]
        pool.advance(1)
        second = await taking(pool)
        await players.end(3, 4, 5)
        assert second.done() == (pool._settings.stale_tokens == "train")
        await players.end(0)
        assert ids(await second) == ([3, 4] if pool._settings.stale_tokens == "train" else [0, 3])

    run(main, max_head_offpolicyness=1)
    run(main, max_head_offpolicyness=1, stale_tokens="train")


@pytest.mark.parametrize("stale_tokens", ["mask", "train"])
def test_a_group_that_is_stale_as_a_whole_fills_no_batch(stale_tokens: str) -> None:
    """Where it waited for too long it is discarded by that name, and another is played; AReaL's bound keeps it."""

    async def main(players: Players, pool: RolloutPool) -> None:
        first = await taking(pool)
        await players.end(0, 1, 2, 3)
        assert ids(await first) == [0, 1]
        for version in (1, 2):  # groups 2 and 3 wait while others' batches move the weights
            pool.advance(version)
        second = await taking(pool)
        assert second.done() == (stale_tokens == "train")
        if stale_tokens == "mask":
            while not second.done():
                await players.end(*players.groups)
        taken = await second
        assert ids(taken) == ([2, 3] if stale_tokens == "train" else [4, 5])
        masks = [(item.episode.group_id, item.mask) for item in taken.discarded]
        assert masks == ([] if stale_tokens == "train" else [("g000002", "stale"), ("g000003", "stale")])
        assert pool.counts.num_accepted_groups + pool.counts.num_running_groups == 8  # (1 + 2 + 1) batches of 2

    run(main, max_head_offpolicyness=1, stale_tokens=stale_tokens)


def test_tokens_that_are_not_trained_keep_no_group() -> None:
    """A greedy member, what the agent left out, a turn without a return and tokens beyond the bounds may be as new as
    they like: the group is as old as what it can train."""

    def entered(*members: Episode, bounds: TokenBounds = NO_BOUNDS) -> str | None:
        waiting = WaitingGroups(
            RolloutSettings(min_members=1, max_head_offpolicyness=1),
            n_samples=len(members),
            version=3,
            group_filter=None,
            bounds=bounds,
        )
        return waiting.enter(Group("g", "t", members), 0)

    task = EpisodeTask("e", "t", "g", {}, seed=0, step=1)
    old, new = episode(task, [0, 0, 1]), episode(task, [3, 3, 3])
    fresh_end = episode(task, [0, 0, 3])
    cold = [replace(turn, sampling=Sampling(temperature=0.0)) for turn in new.session.turns]
    greedy = replace(new, session=replace(new.session, turns=tuple(cold)))
    assert entered(old) == "stale" and entered(new) is None and entered(fresh_end) is None
    assert entered(old, greedy) == "stale"
    assert entered(replace(fresh_end, left_out={"t2": (0,)})) == "stale"
    assert entered(replace(fresh_end, rewards={"t1": 1.0})) == "stale"
    assert entered(fresh_end, bounds=TokenBounds(max_tokens=3)) == "stale"


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_no_token_is_lost_to_age(ahead: int) -> None:
    """Whatever ends in which order: no token of a batch is older than its bound, the first turns of long episodes
    neither; nothing is discarded for its age."""

    async def main(players: Players, pool: RolloutPool) -> None:
        rng = random.Random(ahead)
        for version in range(12):
            taking_now = await taking(pool)
            while not taking_now.done():
                await players.end_turn(rng.choice(players.groups))
            taken = taking_now.result()
            assert not taken.discarded
            turns = [turn for group in taken.groups for each in group.episodes for turn in each.session.turns]
            assert max(version - min(turn.sampled.versions) for turn in turns) <= ahead
            pool.advance(version + 1)

    run(main, max_head_offpolicyness=ahead, max_concurrent_rollouts=5)
