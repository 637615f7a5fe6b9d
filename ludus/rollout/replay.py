"""The replay buffer: keeps good groups of earlier batches and draws some of them for each new batch.

Knows: rewards, ids of groups and episodes, the age of their tokens.  Knows not: the episodes (the run store has them),
advantages, losses.
Invariant: what is drawn for a batch depends only on the run's seed, the batch, and what was added before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Any, Self

from ludus.algorithms.base import is_at_least
from ludus.rollout.groups import token_versions
from ludus.rollout.mixture import derive_seed
from ludus.rollout.settings import ReplaySettings
from ludus.types import Episode, Group


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """A group, by the ids under which the run store has it."""

    id: str
    task_id: str
    source: str
    episodes: tuple[str, ...]
    version: int
    """Version of the weights that sampled its oldest token."""


@dataclass(frozen=True, slots=True)
class ReplayState:
    """The state that a resumed run needs."""

    groups: tuple[KeptGroup, ...] = ()
    """In the order they were added."""

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """From the JSON of `dataclasses.asdict`."""
        return cls(tuple(KeptGroup(**{**each, "episodes": tuple(each["episodes"])}) for each in values["groups"]))


class ReplayBuffer:
    """Good groups of earlier batches, the newest `size` of them."""

    def __init__(
        self,
        settings: ReplaySettings,
        *,
        seed: int,
        batch_size: int,
        teaches: Callable[[Group], bool],
        state: ReplayState | None = None,
    ) -> None:
        """batch_size: in groups.  teaches: whether anything can be learned from a group.  state: of the run that is
        resumed. None: a new run."""
        self._settings = settings
        self._seed = seed
        self._num_places = settings.num_places(batch_size)
        self._teaches = teaches
        self._groups = () if state is None else state.groups

    def __repr__(self) -> str:
        return f"ReplayBuffer(groups={len(self._groups)}, places={self.num_places})"

    @property
    def state(self) -> ReplayState:
        return ReplayState(self._groups)

    @property
    def num_places(self) -> int:
        """Number of groups to draw for the next batch."""
        return min(self._num_places, len(self._groups))

    def draw(self, version: int, find: Callable[[str], Episode]) -> tuple[Group, ...]:
        """Groups for the batch that trains weights `version`, drawn uniformly without repetition.

        find: (id): the episode. What it raises is passed on.
        """
        chosen = Random(derive_seed(self._seed, "replay", version)).sample(self._groups, self.num_places)
        return tuple(Group(each.id, each.task_id, tuple(map(find, each.episodes)), each.source) for each in chosen)

    def add(self, groups: Iterable[Group], version: int) -> None:
        """Keep the good ones among the groups that weights `version` were trained on, and drop those now too old."""
        added = (_kept(group, version) for group in groups if self._is_good(group))
        oldest = None if self._settings.max_age is None else version - self._settings.max_age
        young = (each for each in (*self._groups, *added) if oldest is None or each.version >= oldest)
        self._groups = tuple(young)[-self._settings.size :]

    def _is_good(self, group: Group) -> bool:
        rewards = [each.reward for each in group.episodes if each.reward is not None and not each.is_greedy]
        best, mean = self._settings.min_best, self._settings.min_mean
        return (
            bool(rewards)
            and (best is None or is_at_least(max(rewards), best))
            and (mean is None or is_at_least(fmean(rewards), mean))
            and self._teaches(replace(group, demonstrations=()))  # which are not replayed with it
        )


def _kept(group: Group, version: int) -> KeptGroup:
    ids = tuple(episode.id for episode in group.episodes)
    return KeptGroup(group.id, group.task_id, group.source, ids, min(token_versions(group), default=version))
