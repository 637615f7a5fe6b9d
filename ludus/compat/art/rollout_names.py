"""What the sessions of rollouts are called, and with that what their seeds are made of, wherever they are recorded.

Knows: rollouts, steps.  Knows not: sessions, models.
Invariant: names depend on the step and the order of gatherings alone, so that a loop that is played again, here or
against a server, asks with the same seeds.
"""

from __future__ import annotations

import weakref
from collections import Counter

from ludus.compat.art.rollout import Gathering, Rollout


class RolloutNames:
    """Names of the rollouts that ask one model."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Gathering, str] = weakref.WeakKeyDictionary()
        self._num_gatherings: Counter[int] = Counter()
        """By step, so that a model that goes on from a step is asked with the same seeds."""

    def group(self, rollout: Rollout, *, step: int) -> str:
        """Of its group. step: the model's own at the gathering's first request, which names it for good."""
        gathering = rollout.gathering
        if gathering not in self._names:
            self._num_gatherings[step] += 1
            self._names[gathering] = f"s{step:06d}-{self._num_gatherings[step]:04d}"
        return f"{self._names[gathering]}-g{rollout.group_idx:04d}"


def member_name(rollout: Rollout) -> str:
    """Of the rollout within its group."""
    return f"m{rollout.member_idx:03d}"


def outside_name(step: int) -> str:
    """Of whoever asks outside of rollouts."""
    return f"s{step:06d}-outside"
