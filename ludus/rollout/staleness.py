"""How many groups may start now, and whether a batch has to wait for running ones. Pure functions.

Knows: counts and versions.  Knows not: who plays, who trains.
With `max_head_offpolicyness=0` no group starts before the weights it will train are published: a synchronous run.
Over-sampling keeps its extra groups running in addition, however many groups were taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """The progress of rollouts."""

    version: int
    """Steps trained so far, which is also the version of the weights that sample now."""
    num_accepted_groups: int
    """Groups completed since the first step, trained on or waiting, plus places reserved for groups from elsewhere."""
    num_running_groups: int
    num_running_episodes: int


def num_admissible_groups(
    counts: RolloutCounts,
    *,
    batch_size: int,
    n_samples: int,
    max_concurrent: int,
    max_head_offpolicyness: int,
    total_groups: int | None = None,
    num_extra: int = 0,
) -> int:
    """Number of groups that may start now, at least 0.

    min(free places, (max_head_offpolicyness + version + 1) * batch_size + num_extra - accepted - running). Places are
    counted in episodes: a group may start as soon as one of its members can. total_groups: of the whole run. None:
    unknown. num_extra: groups that over-sampling plays in addition.
    """
    free_episodes = max(0, max_concurrent - counts.num_running_episodes)
    free_groups = -(-free_episodes // n_samples)
    ahead = (max_head_offpolicyness + counts.version + 1) * batch_size
    if total_groups is not None:
        ahead = min(ahead, total_groups)
    return max(0, min(free_groups, ahead + num_extra - counts.num_accepted_groups - counts.num_running_groups))


def num_surplus_groups(counts: RolloutCounts, *, batch_size: int, max_head_offpolicyness: int) -> int:
    """Number of groups, accepted or running, that over-sampling started and no batch needs; at least 0.

    Needed are those for the batches up to `max_head_offpolicyness` versions ahead.
    """
    ahead = (max_head_offpolicyness + counts.version + 1) * batch_size
    return max(0, counts.num_accepted_groups + counts.num_running_groups - ahead)


def is_worth_waiting(
    waiting: Sequence[int], playing: Sequence[int], num_groups: int, *, version: int, max_age: int
) -> bool:
    """Whether a batch should wait for a running group: taking the oldest complete groups now would leave groups that
    get too old before a batch has room for them, and a running group is older than one of those taken.

    waiting, playing: for each complete (sorted) and each running group, the version of the weights that sampled its
    first token.  num_groups: per batch.  version: of the weights that the next batch trains.
    max_age: versions by which a trained token may be older.
    """
    left = sorted((*waiting[num_groups:], *playing))
    is_late = any(oldest + max_age < version + 1 + idx // num_groups for idx, oldest in enumerate(left))
    return is_late and min(playing, default=version) < waiting[num_groups - 1]
