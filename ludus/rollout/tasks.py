"""Which rows are played next: a reproducible order of groups of episodes, with ids and seeds.

Knows: sources of rows, a seed, which rows rest.  Knows not: agents, engines, time.
Invariants: group number `ordinal` is the same row with the same ids and seeds in every run with the same seed and data;
resting rows are skipped, and their ordinals with them.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ludus.rollout.curriculum import Curriculum
from ludus.rollout.mixture import Mixture, Row, Source, derive_seed
from ludus.types import Episode

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """One episode to play."""

    episode_id: str
    group_id: str
    task_id: str
    data: Row
    seed: int
    step: int | None
    """The training step it is played for. None: for none."""
    is_eval: bool = False
    is_greedy: bool = False
    """Sample greedily, whatever the agent asks for."""
    source: str = ""
    """Name of the row's dataset. '': there is only one."""


@dataclass(frozen=True, slots=True)
class GroupTask:
    """One row to be played by several episodes."""

    ordinal: int
    source: Source
    epoch: int
    """Epoch of the source: how often each of its rows came up before."""
    row_idx: int
    run_seed: int

    @property
    def group_id(self) -> str:
        return f"g{self.ordinal:06d}"

    @property
    def task_id(self) -> str:
        return self.source.row_name(self.row_idx)

    def member(
        self, member_idx: int, attempt: int, step: int | None, *, is_greedy: bool = False, num_lost: int = 0
    ) -> EpisodeTask:
        """The task of one member. Each attempt has its own id, and its own seed unless the previous attempt was lost.

        num_lost: how many of the previous attempts were lost.
        """
        return EpisodeTask(
            episode_id=f"{self.group_id}-m{member_idx:02d}" + (f"-r{attempt}" if attempt else ""),
            group_id=self.group_id,
            task_id=self.task_id,
            data=self.source.rows[self.row_idx],
            seed=derive_seed(self.run_seed, "train", self.ordinal, self.row_idx, member_idx, attempt - num_lost),
            step=step,
            source=self.source.name,
            is_greedy=is_greedy,
        )


class GroupStream:
    """The endless stream of groups over the rows of the sources, each source epoch after epoch. It can start where an
    earlier run stopped."""

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        seed: int,
        shuffle: bool,
        next_ordinal: int = 0,
        first: Iterable[int] = (),
        curriculum: Curriculum | None = None,
    ) -> None:
        """next_ordinal, first: from an earlier stream's cursor: where to continue, and the groups that were begun and
        never trained on, which come first.

        curriculum: decides which rows rest. None: none does.
        """
        self._sources = sources
        self._mixture = Mixture(sources, seed)
        self._seed = seed
        self._shuffle = shuffle
        self._again = sorted(first)
        self._orders: dict[str, tuple[int, list[int]]] = {}
        """By source: the epoch used last, and the order of the rows in it."""
        self._has_warned = False
        self.curriculum = curriculum
        self.next_ordinal = next_ordinal
        """Ordinal of the first group that was never dispatched."""

    def __iter__(self) -> Iterator[GroupTask]:
        return self

    def __next__(self) -> GroupTask:
        if self._again:
            return self.group(self._again.pop(0))
        group = self._next_awake()
        self.next_ordinal = group.ordinal + 1
        return group

    @property
    def waiting_again(self) -> tuple[int, ...]:
        """Ordinals of groups that will be played again and were not dispatched yet."""
        return tuple(self._again)

    def group(self, ordinal: int) -> GroupTask:
        source_idx, num_before = self._mixture.at(ordinal)
        source = self._sources[source_idx]
        epoch, place = divmod(num_before, len(source.rows))
        return GroupTask(ordinal, source, epoch, self._order(source, epoch)[place], self._seed)

    def put_back(self, task: GroupTask) -> None:
        """Play the group again: it was ended for reasons outside its episodes, and is neither trained on nor judged."""
        self._again = sorted({*self._again, task.ordinal})

    def record(self, task: GroupTask, episodes: Sequence[Episode]) -> None:
        """Note a group's result for the curriculum. Raises UserError if its episodes report no success."""
        if self.curriculum is not None:
            self.curriculum.record(task.task_id, task.epoch, episodes)

    def _next_awake(self) -> GroupTask:
        """The next group whose row does not rest. If all rows of a pass rest: the one played least recently."""
        group = self.group(self.next_ordinal)
        if self.curriculum is None:
            return group
        resting: list[GroupTask] = []
        while self.curriculum.rests(group.task_id, group.epoch):
            resting.append(group)
            if len(resting) == sum(len(source.rows) for source in self._sources):
                self._warn_of_rest()
                group = min(resting, key=self._last_played)
                break
            group = self.group(group.ordinal + 1)
        for passed in resting:
            if passed.ordinal < group.ordinal:
                self.curriculum.skip(passed.task_id)
        return group

    def _last_played(self, group: GroupTask) -> int:
        assert self.curriculum is not None, "without a curriculum no row rests"
        return self.curriculum.last_played(group.task_id)

    def _warn_of_rest(self) -> None:
        if not self._has_warned:
            logger.warning(
                "train_dataset.curriculum would skip every training row; those are played that were longest ago"
            )
        self._has_warned = True

    def _order(self, source: Source, epoch: int) -> list[int]:
        known = self._orders.get(source.name)
        if known is None or known[0] != epoch:
            order = list(range(len(source.rows)))
            if self._shuffle:
                own = [source.name] if source.name else []
                random.Random(derive_seed(self._seed, "order", *own, epoch)).shuffle(order)
            known = self._orders[source.name] = epoch, order
        return known[1]
