"""Complete groups on their way to a batch: which are taken, which are discarded and why; and where groups come from.

Knows: groups, the versions of their tokens, reasons to mask.  Knows not: who plays, advantages, training.
Invariants: every episode that was entered leaves once, inside a group or as discarded with the reason that masks its
tokens; the groups with the oldest tokens leave first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ludus.episodes.ledger import MaskReason
from ludus.rollout.curriculum import CurriculumState, Rest
from ludus.rollout.settings import RolloutSettings
from ludus.rollout.staleness import is_worth_waiting
from ludus.types import Episode, Group, Outcome

logger = logging.getLogger(__name__)

GroupFilter = Callable[[Group], MaskReason | None]
"""Why a complete group is not wanted. None: it is."""


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
    skipped: Mapping[Rest, int] = field(default_factory=dict)
    """Rows passed over since the last time, by why they rest. Empty: no curriculum says that any does."""
    replayed: tuple[Group, ...] = ()
    """Groups of earlier batches that are trained on again."""

    @property
    def trained(self) -> list[Group]:
        """All groups of the batch in the order of their ids, those of earlier batches spread evenly among the others:
        minibatches are cut of neighbours."""
        placed = [
            ((place + 0.5) / len(groups), group)
            for groups in (self.groups, self.replayed)
            for place, group in enumerate(sorted(groups, key=lambda group: group.id))
        ]
        return [group for _, group in sorted(placed, key=lambda each: each[0])]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a source of groups stands, for a run that goes on later."""

    next_ordinal: int = 0
    """The first group that was never started."""
    unconsumed: tuple[int, ...] = ()
    """Groups that were started and are in no batch."""
    curriculum: CurriculumState | None = None
    """None: no row ever rests."""


class GroupSource(Protocol):
    """Where complete groups come from. An async context manager; leaving it ends what is still open."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *error: object) -> None: ...

    @property
    def cursor(self) -> Cursor: ...

    async def take(self, num_groups: int) -> TakenGroups:
        """Wait for so many complete groups, less those that places are reserved for, of which some token is not too old
        to be trained; those with the oldest tokens come first. Raises what stopped them, if something did."""

    def reserve(self, num_groups: int) -> None:
        """From now on so many places of each batch are for groups that come from elsewhere."""

    def give_back(self, taken: TakenGroups) -> None:
        """What the last `take` brought waits again: no step has learned from it."""

    def drain_nowait(self) -> TakenGroups:
        """Everything that waits and was never trained on; for the last page of the ledger."""

    def advance(self, version: int) -> None:
        """New weights sample now."""

    def pause_admission(self) -> None:
        """Start no more groups; those that play go on."""

    def resume_admission(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    ordinal: int
    group: Group
    oldest: int
    """Version of the weights that sampled its oldest token; and so is `newest`."""
    newest: int


class WaitingGroups:
    """Complete groups that wait to be taken, and what was discarded since the last time. Used on one event loop."""

    def __init__(
        self, settings: RolloutSettings, *, n_samples: int, version: int, group_filter: GroupFilter | None
    ) -> None:
        self.version = version
        """Of the weights that sample now."""
        self.fault: BaseException | None = None
        """What stops the source: `wait` raises it."""
        self._settings = settings
        self._max_age = settings.max_token_age
        self._n_samples = n_samples
        self._group_filter = group_filter
        self._waiting: list[_Waiting] = []
        self._given: tuple[_Waiting, ...] = ()
        self._discarded: list[Discarded] = []
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def ordinals(self) -> Iterator[int]:
        return (waiting.ordinal for waiting in self._waiting)

    @property
    def last_outcome(self) -> Outcome | None:
        """Of the episode that was discarded last. None: none was since the last batch."""
        return self._discarded[-1].episode.outcome if self._discarded else None

    def enter(self, group: Group, ordinal: int) -> MaskReason | None:
        """Why the group, of which these episodes can be trained on, is discarded. None: it waits."""
        mask = small_group_mask(len(group.episodes), self._n_samples, self._settings)
        versions = token_versions(group) or [self.version]
        waiting = _Waiting(ordinal, group, min(versions), max(versions))
        if mask is None and self._is_stale(waiting):
            mask = "stale"
        if mask is None and self._group_filter is not None:
            try:
                mask = self._group_filter(group)
            except Exception as error:  # the user's own: its fault reaches whoever takes the next batch
                self.fault, mask = self.fault or error, "unused"
        if mask is None:
            self._waiting.append(waiting)
        else:
            self._reject(group, mask)
        self.notify()
        return mask

    def discard(self, episodes: Iterable[Episode], mask: MaskReason) -> None:
        self._discarded.extend(Discarded(episode, mask) for episode in episodes)

    def drop(self, num: int) -> None:
        """So many of those that were complete last are not wanted."""
        self._waiting, dropped = self._waiting[:-num], self._waiting[-num:]
        for waiting in dropped:
            self.discard(waiting.group.episodes, "unused")

    def notify(self) -> None:
        """Something has changed for who waits."""
        self._changed.set()

    async def wait(self) -> None:
        """Returns when something has changed. Raises what stops the source."""
        if self.fault is not None:
            raise self.fault
        self._changed.clear()
        await self._changed.wait()

    def is_ready(self, num_groups: int, playing: Iterable[int] = ()) -> bool:
        """So many groups wait, and if those with the oldest tokens make the batch, no group that plays will lose its
        first tokens to their age. A group without a token that may still be trained is discarded.

        playing: versions of the weights when the groups began that play and are to be waited for.
        """
        for waiting in [each for each in self._waiting if self._is_stale(each)]:
            self._waiting.remove(waiting)
            self._reject(waiting.group, "stale")
        versions = sorted(waiting.oldest for waiting in self._waiting)
        return len(versions) >= num_groups and (
            self._max_age is None
            or not is_worth_waiting(versions, [*playing], num_groups, version=self.version, max_age=self._max_age)
        )

    def take_nowait(self, num_groups: int) -> TakenGroups:
        """The groups with the oldest tokens, of equal ones the first, and everything discarded."""
        oldest_first = sorted(self._waiting, key=lambda waiting: (waiting.oldest, waiting.ordinal))
        self._given = tuple(sorted(oldest_first[:num_groups], key=lambda waiting: waiting.ordinal))
        self._waiting = [waiting for waiting in self._waiting if waiting not in self._given]
        discarded, self._discarded = sorted(self._discarded, key=lambda item: item.episode.id), []
        return TakenGroups(tuple(waiting.group for waiting in self._given), tuple(discarded))

    def give_back(self, taken: TakenGroups) -> None:
        """What was taken last waits again."""
        self._waiting[:0] = self._given
        self._discarded[:0] = taken.discarded

    def drain_nowait(self) -> TakenGroups:
        """Everything, in the order in which it was complete."""
        groups = tuple(waiting.group for waiting in self._waiting)
        discarded, self._waiting, self._discarded = tuple(self._discarded), [], []
        return TakenGroups(groups, discarded)

    def _is_stale(self, waiting: _Waiting) -> bool:
        return self._max_age is not None and waiting.newest < self.version - self._max_age

    def _reject(self, group: Group, mask: MaskReason) -> None:
        logger.info("group.rejected id=%s mask=%s members=%d", group.id, mask, len(group.episodes))
        self.discard(group.episodes, mask)


def token_versions(group: Group) -> list[int]:
    """Of the weights that sampled each token of the group."""
    turns = (turn for episode in group.episodes for turn in episode.session.turns)
    return [version for turn in turns for version in turn.sampled.versions]


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
