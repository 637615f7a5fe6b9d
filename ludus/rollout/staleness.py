"""How many groups may start now, and whether a batch has to wait for old ones. Pure.

Knows: counts and versions.  Knows not: who plays, who trains.
With `max_head_offpolicyness=0` no group starts before the weights it will train are published: a synchronous run.
With over-sampling so many groups more are under way as are played on top, whatever is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """Where the rollouts stand."""

    version: int
    """Steps trained so far, which is the version of the weights that sample now."""
    num_accepted_groups: int
    """Complete groups since the first step, trained on or waiting to be, and places that are reserved for others."""
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
    """Groups that may start now, at least 0.

    min(free places, (max_head_offpolicyness + version + 1) * batch_size + num_extra - accepted - running), places
    being counted in episodes: a group may start as soon as one of its members can. total_groups: what the whole run
    takes; None: there is no end in sight. num_extra: groups that play on top.
    """
    free_episodes = max(0, max_concurrent - counts.num_running_episodes)
    free_groups = -(-free_episodes // n_samples)
    ahead = (max_head_offpolicyness + counts.version + 1) * batch_size
    if total_groups is not None:
        ahead = min(ahead, total_groups)
    return max(0, min(free_groups, ahead + num_extra - counts.num_accepted_groups - counts.num_running_groups))


def num_surplus_groups(counts: RolloutCounts, *, batch_size: int, max_head_offpolicyness: int) -> int:
    """Groups, accepted or running, beyond those that may train the batches up to the one of the next version but
    `max_head_offpolicyness`: what over-sampling has started on top and no batch needs. At least 0."""
    ahead = (max_head_offpolicyness + counts.version + 1) * batch_size
    return max(0, counts.num_accepted_groups + counts.num_running_groups - ahead)


def is_worth_waiting(
    waiting: Sequence[int], playing: Sequence[int], num_groups: int, *, version: int, max_age: int
) -> bool:
    """A batch of the oldest complete groups would leave behind groups that no batch in time has room for, and one that
    plays is older than what it would be made of.

    waiting, playing: for each complete group, and for each that is not, the version of the weights that sampled its
    first token; the complete ones rise.  num_groups: of each batch.  version: of the weights that the next one trains.
    max_age: versions by which a trained token may be older.
    """
    left = sorted((*waiting[num_groups:], *playing))
    is_late = any(oldest + max_age < version + 1 + idx // num_groups for idx, oldest in enumerate(left))
    return is_late and min(playing, default=version) < waiting[num_groups - 1]
