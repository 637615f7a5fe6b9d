"""How many groups may start now, and which sampled tokens are too old to train on. Pure.

Knows: counts and versions.  Knows not: who plays, who trains.
With `max_head_offpolicyness=0` no group starts before the weights it will train are published: a synchronous run.
With over-sampling so many groups more are under way as are played on top, whatever is taken.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """Where the rollouts stand."""

    version: int
    """Steps trained so far, which is the version of the weights that sample now."""
    num_accepted_groups: int
    """Complete groups since the first step, trained on or waiting to be."""
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


def oldest_trainable_version(version: int, max_head_offpolicyness: int) -> int:
    """Tokens sampled by an older version than this are masked `stale` when weights `version` are trained."""
    return version - max_head_offpolicyness
