"""Complete groups that wait for a batch: which are taken, which discarded and why; and the sources they come from.

Knows: groups, the versions of their tokens, reasons to mask.  Knows not: who plays, advantages, training.
Invariants: every episode entered leaves exactly once, inside a group or discarded with the reason that masks its
tokens; groups with the oldest tokens leave first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ludus.episodes.export import NO_BOUNDS, TokenBounds, TurnCredit, trained_places
from ludus.episodes.ledger import MaskReason
from ludus.episodes.reward import reached_turns
from ludus.rollout.curriculum import CurriculumState, Rest
from ludus.rollout.settings import RolloutSettings
from ludus.rollout.staleness import is_worth_waiting
from ludus.types import Episode, Group, Outcome

logger = logging.getLogger(__name__)

GroupFilter = Callable[[Group], MaskReason | None]
"""(group): the reason to discard a complete group. None: keep it."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """An episode that will not be trained on, and why."""

    episode: Episode
    mask: MaskReason


@dataclass(frozen=True, slots=True)
class TakenGroups:
    """Complete groups, ordered by id, and what was discarded since the last time."""

    groups: tuple[Group, ...]
    discarded: tuple[Discarded, ...]
    skipped: Mapping[Rest, int] = field(default_factory=dict)
    """How many rows were skipped since the last time, by reason. Empty without a curriculum."""
    replayed: tuple[Group, ...] = ()
    """Groups of earlier batches to train on again."""

    @property
    def trained(self) -> list[Group]:
        """All groups of the batch, ordered by id, with replayed ones spread evenly among the others, because
        minibatches are consecutive groups."""
        placed = [
            ((place + 0.5) / len(groups), group)
            for groups in (self.groups, self.replayed)
            for place, group in enumerate(sorted(groups, key=lambda group: group.id))
        ]
        return [group for _, group in sorted(placed, key=lambda each: each[0])]


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a source of groups, for resuming the run."""

    next_ordinal: int = 0
    """Ordinal of the first group that was never started."""
    unconsumed: tuple[int, ...] = ()
    """Ordinals of groups that were started and are in no batch."""
    curriculum: CurriculumState | None = None
    """None: there is no curriculum."""


class GroupSource(Protocol):
    """Where complete groups come from. An async context manager; leaving it ends what is still open."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *error: object) -> None: ...

    @property
    def cursor(self) -> Cursor: ...

    async def take(self, num_groups: int) -> TakenGroups:
        """Wait for `num_groups` complete groups, less the reserved places, that still have a token which is not too old
        to train; those with the oldest tokens come first. Raises the fault that stopped the source, if there is one."""

    def reserve(self, num_groups: int) -> None:
        """From now on keep `num_groups` places of each batch for groups from elsewhere, such as replayed ones."""

    def give_back(self, taken: TakenGroups) -> None:
        """Put back what the last `take` returned: no step was trained on it."""

    def drain_nowait(self) -> TakenGroups:
        """All waiting groups, which will not be trained on; called at the end of the run, for the ledger."""

    def advance(self, version: int) -> None:
        """Weights `version` sample from now on."""

    def pause_admission(self) -> None:
        """Start no more groups; running ones continue."""

    def resume_admission(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    ordinal: int
    group: Group
    oldest: int
    """Version of the weights that sampled the oldest of its tokens that can be trained; `newest` likewise."""
    newest: int


class WaitingGroups:
    """Complete groups waiting to be taken, and what was discarded since the last take. Used on one event loop."""

    def __init__(
        self,
        settings: RolloutSettings,
        *,
        n_samples: int,
        version: int,
        group_filter: GroupFilter | None,
        bounds: TokenBounds = NO_BOUNDS,
    ) -> None:
        """bounds: of the tokens that are trained, apart from their age."""
        self.version = version
        """Version of the weights that sample now."""
        self.fault: BaseException | None = None
        """The error that stops the source; `wait` raises it."""
        self._settings = settings
        self._max_age = settings.max_token_age
        self._n_samples = n_samples
        self._group_filter = group_filter
        self._bounds = bounds
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
        """Outcome of the episode discarded last. None: none was discarded since the last batch."""
        return self._discarded[-1].episode.outcome if self._discarded else None

    def enter(self, group: Group, ordinal: int) -> MaskReason | None:
        """Add a complete group of trainable episodes. Returns why it was discarded. None: it now waits."""
        mask = small_group_mask(len(group.episodes), self._n_samples, self._settings)
        versions = token_versions(group, self._bounds) or [self.version]
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
        """Discard the `num` groups that were completed last."""
        self._waiting, dropped = self._waiting[:-num], self._waiting[-num:]
        for waiting in dropped:
            self.discard(waiting.group.episodes, "unused")

    def notify(self) -> None:
        """Wake those that wait."""
        self._changed.set()

    async def wait(self) -> None:
        """Returns when something has changed. Raises the error that stops the source."""
        if self.fault is not None:
            raise self.fault
        self._changed.clear()
        await self._changed.wait()

    def is_ready(self, num_groups: int, playing: Iterable[int] = ()) -> bool:
        """Whether `num_groups` groups wait and can be taken without making a running group's first tokens too old to
        train. Discards groups of which every token is too old.

        playing: for each running group that is to be waited for, the version of the weights when it began.
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
        """The groups with the oldest tokens (among equals the first), and everything discarded."""
        oldest_first = sorted(self._waiting, key=lambda waiting: (waiting.oldest, waiting.ordinal))
        self._given = tuple(sorted(oldest_first[:num_groups], key=lambda waiting: waiting.ordinal))
        self._waiting = [waiting for waiting in self._waiting if waiting not in self._given]
        discarded, self._discarded = sorted(self._discarded, key=lambda item: item.episode.id), []
        return TakenGroups(tuple(waiting.group for waiting in self._given), tuple(discarded))

    def give_back(self, taken: TakenGroups) -> None:
        """Put back what was taken last."""
        self._waiting[:0] = self._given
        self._discarded[:0] = taken.discarded

    def drain_nowait(self) -> TakenGroups:
        """All groups, in order of completion."""
        groups = tuple(waiting.group for waiting in self._waiting)
        discarded, self._waiting, self._discarded = tuple(self._discarded), [], []
        return TakenGroups(groups, discarded)

    def _is_stale(self, waiting: _Waiting) -> bool:
        return self._max_age is not None and waiting.newest < self.version - self._max_age

    def _reject(self, group: Group, mask: MaskReason) -> None:
        logger.info("group.rejected id=%s mask=%s members=%d", group.id, mask, len(group.episodes))
        self.discard(group.episodes, mask)


def token_versions(group: Group, bounds: TokenBounds = NO_BOUNDS) -> list[int]:
    """For each token of the group that can be trained within `bounds`, the version of the weights that sampled it."""
    found: list[int] = []
    for episode in group.episodes:
        turns = {turn.id: turn for turn in episode.session.turns}
        places = trained_places(episode.session, any_credit(episode), bounds=bounds, left_out=episode.left_out)
        found += [turns[turn_id].sampled.versions[i] for turn_id, chosen in places.items() for i in chosen]
    return found


def any_credit(episode: Episode) -> dict[str, TurnCredit]:
    """A stand-in for credit, before there is any: advantage 0 for every turn that a return reaches."""
    reached = reached_turns(episode)
    credit, none = TurnCredit(advantage=0.0, mask=None), TurnCredit(advantage=None, mask="no_credit")
    return {turn.id: credit if turn.id in reached else none for turn in episode.session.turns}


def discard_reason(episode: Episode) -> MaskReason | None:
    """Why the episode cannot be trained on. None: it can (it ended by itself or at a limit, with a reward)."""
    match episode.outcome.kind:
        case "ok" | "truncated":
            return None if episode.rewards else "no_credit"
        case kind:
            return kind


def small_group_mask(num_survivors: int, n_samples: int, settings: RolloutSettings) -> MaskReason | None:
    """`small_group` if too few members of a group can be trained on, else None."""
    return "small_group" if num_survivors < min(settings.min_members, n_samples) else None
