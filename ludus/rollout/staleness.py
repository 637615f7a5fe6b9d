"""How many groups may start now, and which sampled tokens are too old to train on. Pure.

Knows: counts and versions.  Knows not: who plays, who trains.
With `max_head_offpolicyness=0` no group starts before the weights it will train are published: a synchronous run.
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
) -> int:
    """Groups that may start now, at least 0.

    min(free places, (max_head_offpolicyness + version + 1) * batch_size - accepted - running), places being
    counted in episodes: a group may start as soon as one of its members can. total_groups: what the whole run takes;
    None: there is no end in sight.
    """
    free_episodes = max(0, max_concurrent - counts.num_running_episodes)
    free_groups = -(-free_episodes // n_samples)
    ahead = (max_head_offpolicyness + counts.version + 1) * batch_size
    if total_groups is not None:
        ahead = min(ahead, total_groups)
    return max(0, min(free_groups, ahead - counts.num_accepted_groups - counts.num_running_groups))


def oldest_trainable_version(version: int, max_head_offpolicyness: int) -> int:
    """Tokens sampled by an older version than this are masked `stale` when weights `version` are trained."""
    return version - max_head_offpolicyness
