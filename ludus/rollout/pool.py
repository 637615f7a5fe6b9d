"""Plays groups of episodes concurrently: starts as many as allowed, retries failed episodes, delivers complete groups.

Knows: group tasks, episodes and their outcomes, admission.  Knows not: agents, HTTP, advantages, training.
Invariants: a failed episode does not affect the others of its group; every episode played leaves either inside an
accepted group or discarded with the reason that masks its tokens, also when its group is cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from ludus.episodes.export import NO_BOUNDS, TokenBounds
from ludus.episodes.ledger import MaskReason
from ludus.errors import UserError
from ludus.rollout.groups import Cursor, GroupFilter, TakenGroups, WaitingGroups, discard_reason
from ludus.rollout.settings import RolloutSettings
from ludus.rollout.staleness import RolloutCounts, num_admissible_groups, num_surplus_groups
from ludus.rollout.tasks import EpisodeTask, GroupStream, GroupTask
from ludus.types import Episode, Group

logger = logging.getLogger(__name__)

PlayEpisode = Callable[[EpisodeTask], Awaitable[Episode]]
Demonstrate = Callable[[GroupTask], tuple[Episode, ...]]
REPLAYED = ("failed", "timeout", "lost")
"""Outcomes after which a member is played again: `lost` always, the others at most `retries` times."""
_MAX_REJECTED_GROUPS = 256
"""So many rejected groups in a row stop the run: such a filter would not fill a batch in reasonable time."""


@dataclass(slots=True)
class _RunningGroup:
    """A group that is being played."""

    task: GroupTask
    step: int
    """The training step that it is played for."""
    num_open: int
    """Members that are playing or will play."""
    survivors: dict[int, Episode] = field(default_factory=dict)
    """Trainable episodes, by member."""
    version: int | None = None
    """Version of the weights when its first episode began. None: none has begun."""
    is_over: bool = False
    """It is complete or cancelled: later results of its members are discarded."""


class RolloutPool:
    """Plays the groups of a stream. Use as an async context manager; leaving it cancels what is still running."""

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
        bounds: TokenBounds = NO_BOUNDS,
        with_greedy: bool = False,
        demonstrate: Demonstrate | None = None,
    ) -> None:
        """version: steps trained already.  total_groups: most groups ever accepted. None: no limit.

        bounds: of the tokens that are trained, apart from their age.

        with_greedy: each group has one more member, which samples greedily.

        demonstrate: the demonstrations for a group's row. None: there are none.
        """
        self._play = play
        self._stream = stream
        self._settings = settings
        self._n_samples = n_samples
        self._num_members = n_samples + with_greedy
        self._batch_size = batch_size
        self._total_groups = total_groups
        self._demonstrate = demonstrate
        self._slots = asyncio.Semaphore(settings.max_concurrent_rollouts)
        self._tasks = asyncio.TaskGroup()
        self._num_taken = version * batch_size
        """Groups taken into batches since the first step."""
        self._num_reserved = 0
        """Places of each batch that are kept for groups from elsewhere."""
        self._num_rejected_in_a_row = 0
        self._num_failed_in_a_row = 0
        self._first_failure = ""
        self._is_paused = False
        self._waiting = WaitingGroups(
            settings, n_samples=n_samples, version=version, group_filter=group_filter, bounds=bounds
        )
        self._running: dict[asyncio.Task[None], _RunningGroup] = {}
        """Running groups, in order of their start."""

    def __repr__(self) -> str:
        return f"RolloutPool({self.counts}, waiting_groups={len(self._waiting)})"

    async def __aenter__(self) -> RolloutPool:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_paused = True
        for task in self._running:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)

    @property
    def cursor(self) -> Cursor:
        running = (group.task.ordinal for group in self._running.values() if not group.is_over)
        begun = {*running, *self._waiting.ordinals, *self._stream.waiting_again}
        curriculum = self._stream.curriculum
        state = None if curriculum is None else curriculum.state
        return Cursor(self._stream.next_ordinal, tuple(sorted(begun)), state)

    @property
    def counts(self) -> RolloutCounts:
        running = [group for group in self._running.values() if not group.is_over]
        num_episodes = sum(group.num_open for group in self._running.values())
        num_accepted = self._num_taken + len(self._waiting) + self._num_reserved * self._num_open_batches
        return RolloutCounts(self._waiting.version, num_accepted, len(running), num_episodes)

    def _is_stopped(self) -> bool:
        """Whether a fault stopped the pool; the next `take` raises it."""
        return self._waiting.fault is not None

    @property
    def _num_open_batches(self) -> int:
        """Number of coming batches whose groups may start now."""
        ahead = (self._settings.max_head_offpolicyness + self._waiting.version + 1) * self._batch_size
        ahead = ahead if self._total_groups is None else min(ahead, self._total_groups)
        return max(0, ahead - self._num_taken) // self._batch_size

    async def take(self, num_groups: int) -> TakenGroups:
        """As `GroupSource.take`; also waits for running groups whose first tokens would be too old later."""
        self._admit_nowait()
        num_own = num_groups - self._num_reserved
        while not self._waiting.is_ready(num_own, self._waited_for()):
            self._admit_nowait()  # what was too old has made room
            await self._waiting.wait()
        taken = self._waiting.take_nowait(num_own)
        self._num_taken += num_groups
        if self._settings.oversample > 0 and not self._settings.keeps_rest:
            self._cancel_surplus()
        if self._stream.curriculum is not None:
            taken = replace(taken, skipped=self._stream.curriculum.settle())
        return taken

    def reserve(self, num_groups: int) -> None:
        """As `GroupSource.reserve`."""
        self._num_reserved = num_groups

    def give_back(self, taken: TakenGroups) -> None:
        """Put back what the last `take` returned: no step was trained on it."""
        self._num_taken -= len(taken.groups) + len(taken.replayed)
        self._waiting.give_back(taken)

    def drain_nowait(self) -> TakenGroups:
        """All waiting groups, which will not be trained on; called at the end of the run, for the ledger."""
        return self._waiting.drain_nowait()

    def advance(self, version: int) -> None:
        """Weights `version` sample from now on; more groups may start."""
        self._waiting.version = version
        self._admit_nowait()

    def pause_admission(self) -> None:
        """Start no more groups; running ones continue."""
        self._is_paused = True

    def resume_admission(self) -> None:
        self._is_paused = False
        self._admit_nowait()

    def _admit_nowait(self) -> None:
        if self._is_paused or self._is_stopped():
            return
        settings = self._settings
        while num_admissible_groups(
            self.counts,
            batch_size=self._batch_size,
            n_samples=self._num_members,
            max_concurrent=settings.max_concurrent_rollouts,
            max_head_offpolicyness=settings.max_head_offpolicyness,
            total_groups=self._total_groups,
            num_extra=settings.num_extra_groups(self._batch_size),
        ):
            group = _RunningGroup(next(self._stream), self._waiting.version + 1, self._num_members)
            running = self._tasks.create_task(self._play_group(group), name=group.task.group_id)
            self._running[running] = group
            running.add_done_callback(self._leave)

    def _waited_for(self) -> list[int]:
        """For each running group, the version of the weights that sample its first tokens. Empty with over-sampling,
        whose purpose is not to wait for slow groups."""
        running = [group for group in self._running.values() if not group.is_over and self._settings.oversample == 0]
        return [group.version for group in running if group.version is not None]

    def _leave(self, ended: asyncio.Task[None]) -> None:
        del self._running[ended]
        self._waiting.notify()
        self._admit_nowait()

    def _cancel_surplus(self) -> None:
        """After a full batch: cancel the surplus groups, the longest running first, and drop surplus complete ones."""
        settings = self._settings
        num_surplus = num_surplus_groups(
            self.counts, batch_size=self._batch_size, max_head_offpolicyness=settings.max_head_offpolicyness
        )
        running = [(task, group) for task, group in self._running.items() if not group.is_over]
        for task, group in running[:num_surplus]:
            group.is_over = True
            self._waiting.discard(group.survivors.values(), "unused")
            task.cancel()
        if (num_waiting := num_surplus - len(running)) > 0:
            self._waiting.drop(num_waiting)

    async def _play_group(self, group: _RunningGroup) -> None:
        members = [self._tasks.create_task(self._play_member(group, idx)) for idx in range(self._num_members)]
        try:
            await asyncio.wait(members)
        except asyncio.CancelledError:
            for member in members:
                member.cancel()
            if not group.is_over:
                group.is_over = True
                self._waiting.discard(group.survivors.values(), "unused")
            raise
        group.is_over = True
        survivors = [group.survivors[idx] for idx in sorted(group.survivors)]
        task, demonstrations = group.task, tuple[Episode, ...]()
        try:
            if not self._is_stopped() and self._demonstrate is not None:
                demonstrations = self._demonstrate(task)
        except UserError as error:
            self._fail(error)
        if self._is_stopped():
            self._waiting.discard(survivors, "unused")
            self._stream.put_back(task)
            return
        played = Group(task.group_id, task.task_id, tuple(survivors), task.source.name, demonstrations)
        mask = self._waiting.enter(played, task.ordinal)
        if self._is_stopped():
            self._stream.put_back(task)
            return
        if mask != "small_group":  # what failed says nothing about the row
            try:
                # the greedy member does not say how often it is solved
                drawn = [each for idx, each in sorted(group.survivors.items()) if idx < self._n_samples]
                self._stream.record(task, drawn)
            except UserError as error:
                self._fail(error)
        if mask is None:
            self._num_rejected_in_a_row = 0
        else:
            self._count_rejection(mask)

    async def _play_member(self, group: _RunningGroup, member_idx: int) -> None:
        """Play one member: puts its episode into the group, or discards it if no attempt can be trained on."""
        try:
            num_failed = 0
            for attempt in itertools.count():
                async with self._slots:
                    if group.version is None:
                        group.version = self._waiting.version
                    is_greedy = member_idx == self._n_samples
                    num_lost = attempt - num_failed
                    task = group.task.member(member_idx, attempt, group.step, is_greedy=is_greedy, num_lost=num_lost)
                    episode = await self._play(task)
                self._count_failure(episode)
                mask = discard_reason(episode)
                if mask is None and not group.is_over:
                    group.survivors[member_idx] = episode
                    return
                self._waiting.discard([episode], mask or "unused")
                num_failed += episode.outcome.kind != "lost"  # that was no fault of its own
                is_over = num_failed > self._settings.retries or self._is_stopped() or group.is_over
                if is_over or episode.outcome.kind not in REPLAYED:
                    return
        except Exception as error:  # the boundary of a member: the fault reaches whoever takes the next batch
            self._fail(error)
        finally:
            group.num_open -= 1
            self._admit_nowait()

    def _count_failure(self, episode: Episode) -> None:
        if episode.outcome.kind in ("cancelled", "lost"):
            return
        if episode.outcome.kind not in ("failed", "timeout"):
            self._num_failed_in_a_row = 0
            return
        outcome = episode.outcome
        logger.info("episode.failed id=%s outcome=%s reason=%s", episode.id, outcome.kind, outcome.reason)
        if self._num_failed_in_a_row == 0:
            self._first_failure = f"{episode.id}, {outcome.kind}: {outcome.reason}"
        self._num_failed_in_a_row += 1
        if self._num_failed_in_a_row >= self._settings.max_consecutive_failures:
            self._fail(
                UserError(
                    f"{self._num_failed_in_a_row} episodes in a row failed "
                    f"(rollout.max_consecutive_failures); the first was {self._first_failure}"
                )
            )

    def _count_rejection(self, mask: MaskReason) -> None:
        self._num_rejected_in_a_row += 1
        if self._num_rejected_in_a_row >= _MAX_REJECTED_GROUPS:
            last, num = self._waiting.last_outcome, self._num_rejected_in_a_row
            ending = f"; the last episode ended {last.kind}: {last.reason}" if last is not None else ""
            self._fail(UserError(f"no batch can be filled: {num} groups in a row were rejected ({mask}){ending}"))

    def _fail(self, error: Exception) -> None:
        """Stop with this error, unless another came first; the next `take` raises it."""
        self._waiting.fault = self._waiting.fault or error
        self._waiting.notify()
