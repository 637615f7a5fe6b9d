"""Groups of episodes, many at once, bounded: starts what may start, replays what failed, passes on complete groups.

Knows: group tasks, episodes and their outcomes, admission.  Knows not: agents, HTTP, advantages, training.
Invariants: one failed episode never takes its siblings along; every episode that was played leaves either inside an
accepted group or as discarded with the reason that masks its tokens, also when its group is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ludus.episodes.ledger import MaskReason
from ludus.errors import UserError
from ludus.rollout.settings import RolloutSettings
from ludus.rollout.staleness import RolloutCounts, num_admissible_groups, num_surplus_groups
from ludus.rollout.tasks import EpisodeTask, GroupStream, GroupTask
from ludus.types import Episode, Group

logger = logging.getLogger(__name__)

PlayEpisode = Callable[[EpisodeTask], Awaitable[Episode]]
GroupFilter = Callable[[Group], MaskReason | None]
"""Why a complete group is not wanted. None: it is."""

REPLAYED = ("failed", "timeout", "lost")
"""Outcomes after which a member is played again: what was lost, always; the others, so many times."""
_MAX_REJECTED_GROUPS = 256
"""Groups rejected in a row before the run stops: a filter this strict would never fill a batch in reasonable time."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """An episode that will not be trained on, and why."""

    episode: Episode
    mask: MaskReason


@dataclass(frozen=True, slots=True)
class TakenGroups:
    """Complete groups in the order of their ids, and what was discarded since the last time."""

    groups: tuple[Group, ...]
    discarded: tuple[Discarded, ...]


@dataclass(slots=True)
class _State:
    version: int
    num_accepted: int
    num_rejected_in_a_row: int = 0
    num_failed_in_a_row: int = 0
    first_failure: str = ""
    is_paused: bool = False


@dataclass(slots=True)
class _RunningGroup:
    """One group while it is played."""

    task: GroupTask
    step: int
    """The one that asks for it."""
    num_open: int
    """Members that play or are going to."""
    survivors: dict[int, Episode] = field(default_factory=dict)
    """By member."""
    is_over: bool = False
    """It is complete, or cancelled: what its members still bring is not wanted."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a source of groups stands, for a run that goes on later."""

    next_ordinal: int = 0
    """The first group that was never started."""
    unconsumed: tuple[int, ...] = ()
    """Groups that were started and are in no batch."""


class GroupSource(Protocol):
    """Where complete groups come from. An async context manager; leaving it ends what is still open."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *error: object) -> None: ...

    @property
    def cursor(self) -> Cursor: ...

    async def take(self, num_groups: int) -> TakenGroups:
        """Wait for so many complete groups. Raises what stopped them, if something did."""

    def give_back(self, taken: TakenGroups) -> None:
        """What the last `take` brought waits again: no step has learned from it."""

    def drain_nowait(self) -> TakenGroups:
        """Everything that waits and was never trained on; for the last page of the ledger."""

    def advance(self, version: int) -> None:
        """New weights sample now."""

    def pause_admission(self) -> None:
        """Start no more groups; those that play go on."""

    def resume_admission(self) -> None: ...


class RolloutPool:
    """Plays the groups of a stream. Use as an async context manager; leaving it cancels what still plays."""

    def __init__(
        self,
        play: PlayEpisode,
        stream: GroupStream,
        settings: RolloutSettings,
        *,
        n_samples: int,
        batch_size: int,
        version: int = 0,
        total_groups: int | None = None,
        group_filter: GroupFilter | None = None,
    ) -> None:
        """version: steps trained already.  total_groups: no more than these are ever accepted. None: no limit."""
        self._play = play
        self._stream = stream
        self._settings = settings
        self._n_samples = n_samples
        self._batch_size = batch_size
        self._total_groups = total_groups
        self._group_filter = group_filter
        self._places = asyncio.Semaphore(settings.max_concurrent_rollouts)
        self._tasks = asyncio.TaskGroup()
        self._changed = asyncio.Event()
        self._state = _State(version=version, num_accepted=version * batch_size)
        self._accepted: list[tuple[int, Group]] = []
        self._given: dict[str, int] = {}
        """Ordinals of the groups that the last `take` brought, by their ids."""
        self._discarded: list[Discarded] = []
        self._games: dict[asyncio.Task[None], _RunningGroup] = {}
        """What is played, in the order in which it began."""
        self._fault: BaseException | None = None

    def __repr__(self) -> str:
        state = self._state
        return (
            f"RolloutPool(version={state.version}, running_groups={self.counts.num_running_groups}, "
            f"running_episodes={self.counts.num_running_episodes}, waiting_groups={len(self._accepted)})"
        )

    async def __aenter__(self) -> RolloutPool:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._state.is_paused = True
        for task in self._games:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)

    @property
    def cursor(self) -> Cursor:
        running = (game.task.ordinal for game in self._games.values() if not game.is_over)
        begun = {*running, *(ordinal for ordinal, _ in self._accepted), *self._stream.waiting_again}
        return Cursor(self._stream.next_ordinal, tuple(sorted(begun)))

    @property
    def counts(self) -> RolloutCounts:
        running = [game for game in self._games.values() if not game.is_over]
        num_episodes = sum(game.num_open for game in self._games.values())
        return RolloutCounts(self._state.version, self._state.num_accepted, len(running), num_episodes)

    async def take(self, num_groups: int) -> TakenGroups:
        """Wait for so many complete groups. Raises what stopped the rollouts, if something did."""
        self._admit_nowait()
        while len(self._accepted) < num_groups:
            if self._fault is not None:
                raise self._fault
            self._changed.clear()
            await self._changed.wait()
        chosen, self._accepted = self._accepted[:num_groups], self._accepted[num_groups:]
        if self._settings.oversample > 0 and not self._settings.keeps_rest:
            self._cancel_surplus()
        self._given = {group.id: ordinal for ordinal, group in chosen}
        discarded, self._discarded = self._discarded, []
        groups = tuple(group for _, group in sorted(chosen, key=lambda pair: pair[0]))
        return TakenGroups(groups, tuple(sorted(discarded, key=lambda item: item.episode.id)))

    def give_back(self, taken: TakenGroups) -> None:
        """What the last `take` brought waits again: no step has learned from it."""
        self._accepted[:0] = [(self._given[group.id], group) for group in taken.groups]
        self._discarded[:0] = taken.discarded

    def drain_nowait(self) -> TakenGroups:
        """Everything that waits and was never trained on; for the last page of the ledger."""
        groups = tuple(group for _, group in self._accepted)
        discarded, self._accepted, self._discarded = self._discarded, [], []
        return TakenGroups(groups, tuple(discarded))

    def advance(self, version: int) -> None:
        """New weights sample now; more groups may start."""
        self._state.version = version
        self._admit_nowait()

    def pause_admission(self) -> None:
        """Start no more groups; those that play go on."""
        self._state.is_paused = True

    def resume_admission(self) -> None:
        self._state.is_paused = False
        self._admit_nowait()

    def _admit_nowait(self) -> None:
        if self._state.is_paused or self._fault is not None:
            return
        settings = self._settings
        while num_admissible_groups(
            self.counts,
            batch_size=self._batch_size,
            n_samples=self._n_samples,
            max_concurrent=settings.max_concurrent_rollouts,
            max_head_offpolicyness=settings.max_head_offpolicyness,
            total_groups=self._total_groups,
            num_extra=settings.num_extra_groups(self._batch_size),
        ):
            game = _RunningGroup(next(self._stream), self._state.version + 1, self._n_samples)
            running = self._tasks.create_task(self._play_group(game), name=game.task.group_id)
            self._games[running] = game
            running.add_done_callback(self._leave)

    def _leave(self, ended: asyncio.Task[None]) -> None:
        del self._games[ended]
        self._changed.set()
        self._admit_nowait()

    def _cancel_surplus(self) -> None:
        """A batch is full: end what plays on top, the longest first, and drop what is complete on top of that."""
        settings = self._settings
        num_surplus = num_surplus_groups(
            self.counts, batch_size=self._batch_size, max_head_offpolicyness=settings.max_head_offpolicyness
        )
        running = [(task, game) for task, game in self._games.items() if not game.is_over]
        for task, game in running[:num_surplus]:
            game.is_over = True
            self._discard(game.survivors.values(), "unused")
            task.cancel()
        if (num_waiting := num_surplus - len(running)) > 0:
            kept, dropped = self._accepted[:-num_waiting], self._accepted[-num_waiting:]
            self._accepted = kept
            self._state.num_accepted -= len(dropped)
            for _, group in dropped:
                self._discard(group.episodes, "unused")

    async def _play_group(self, game: _RunningGroup) -> None:
        members = [self._tasks.create_task(self._play_member(game, idx)) for idx in range(self._n_samples)]
        try:
            await asyncio.wait(members)
        except asyncio.CancelledError:
            for member in members:
                member.cancel()
            if not game.is_over:
                game.is_over = True
                self._discard(game.survivors.values(), "unused")
            raise
        game.is_over = True
        survivors = [game.survivors[idx] for idx in sorted(game.survivors)]
        if self._fault is not None:
            self._discard(survivors, "unused")
            return
        try:
            self._settle(game.task, survivors)
        except Exception as error:  # the user's group filter: its fault reaches whoever takes the next batch
            self._fault = error
            self._discard(survivors, "unused")

    async def _play_member(self, game: _RunningGroup, member_idx: int) -> None:
        """Leaves the member's episode in the game, or discarded if no attempt brought one that can be trained on."""
        try:
            num_failed = 0
            for attempt in itertools.count():
                async with self._places:
                    episode = await self._play(game.task.member(member_idx, attempt, game.step))
                self._count_failure(episode)
                mask = discard_reason(episode)
                if mask is None and not game.is_over:
                    game.survivors[member_idx] = episode
                    return
                self._discarded.append(Discarded(episode, mask or "unused"))
                num_failed += episode.outcome.kind != "lost"  # that was no fault of its own
                is_over = num_failed > self._settings.retries or self._fault is not None or game.is_over
                if is_over or episode.outcome.kind not in REPLAYED:
                    return
        except Exception as error:  # the boundary of a member: the fault reaches whoever takes the next batch
            self._fault = self._fault or error
            self._changed.set()
        finally:
            game.num_open -= 1
            self._admit_nowait()

    def _settle(self, task: GroupTask, survivors: list[Episode]) -> None:
        group = Group(id=task.group_id, task_id=task.task_id, episodes=tuple(survivors))
        mask = small_group_mask(len(survivors), self._n_samples, self._settings)
        if mask is None and self._group_filter is not None:
            mask = self._group_filter(group)
        if mask is None:
            self._accepted.append((task.ordinal, group))
            self._state.num_accepted += 1
            self._state.num_rejected_in_a_row = 0
            return
        self._discard(survivors, mask)
        self._count_rejection(group, mask)

    def _discard(self, episodes: Iterable[Episode], mask: MaskReason) -> None:
        self._discarded.extend(Discarded(episode, mask) for episode in episodes)

    def _count_failure(self, episode: Episode) -> None:
        state = self._state
        if episode.outcome.kind in ("cancelled", "lost"):
            return
        if episode.outcome.kind not in ("failed", "timeout"):
            state.num_failed_in_a_row = 0
            return
        outcome = episode.outcome
        logger.info("episode.failed id=%s outcome=%s reason=%s", episode.id, outcome.kind, outcome.reason)
        if state.num_failed_in_a_row == 0:
            state.first_failure = f"{episode.id}, {outcome.kind}: {outcome.reason}"
        state.num_failed_in_a_row += 1
        if state.num_failed_in_a_row >= self._settings.max_consecutive_failures and self._fault is None:
            self._fault = UserError(
                f"{state.num_failed_in_a_row} episodes in a row failed "
                f"(rollout.max_consecutive_failures); the first was {state.first_failure}"
            )
            self._changed.set()

    def _count_rejection(self, group: Group, mask: MaskReason) -> None:
        state = self._state
        state.num_rejected_in_a_row += 1
        last = self._discarded[-1].episode.outcome if self._discarded else None
        logger.info("group.rejected id=%s mask=%s survivors=%d", group.id, mask, len(group.episodes))
        if state.num_rejected_in_a_row >= _MAX_REJECTED_GROUPS and self._fault is None:
            ending = f"; the last episode ended {last.kind}: {last.reason}" if last is not None else ""
            self._fault = UserError(
                f"no batch can be filled: {state.num_rejected_in_a_row} groups in a row were rejected ({mask}){ending}"
            )


def discard_reason(episode: Episode) -> MaskReason | None:
    """Why the episode cannot be trained on. None: it ended by itself or by a limit, and some turn has a reward."""
    match episode.outcome.kind:
        case "ok" | "truncated":
            return None if episode.rewards else "no_credit"
        case kind:
            return kind


def small_group_mask(num_survivors: int, n_samples: int, settings: RolloutSettings) -> MaskReason | None:
    """`small_group` if too few of a group's members can be trained on. None: they are enough."""
    return "small_group" if num_survivors < min(settings.min_members, n_samples) else None
