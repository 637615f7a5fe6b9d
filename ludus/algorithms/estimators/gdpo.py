"""GDPO: several rewards, each normalised on its own, so that none dominates by its scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from ludus.algorithms.base import GroupReturns, Needs, Returns, Rule
from ludus.algorithms.estimators.group import group_advantages
from ludus.errors import UserError
from ludus.settings import Choice


class GdpoSettings(Choice):
    """Metrics of an episode as rewards of their own."""

    kind: Literal["gdpo"] = "gdpo"
    rewards: dict[str, float] = Field(min_length=1)
    """Weights of the rewards, by the name of the episode's metric."""


def gdpo_advantages(groups: Sequence[GroupReturns], *, rewards: Mapping[str, float]) -> list[Returns]:
    """The weighted sum of the group advantages of all rewards, divided by its spread in the batch; equal for all turns.

    Raises UserError if an episode lacks one of the metrics. Source: GDPO (arXiv 2601.05242) eq. 4 to 6.
    """
    parts = [
        (weight, group_advantages([_with_returns(each, name) for each in groups])) for name, weight in rewards.items()
    ]
    summed = [
        GroupReturns(each.group, _weighed(each, [(weight, of_groups[at]) for weight, of_groups in parts]))
        for at, each in enumerate(groups)
    ]
    # no baseline: the mean of each group is 0 already
    return group_advantages(summed, baseline="none", scale="batch")


def is_flat(group: GroupReturns, *, rewards: Mapping[str, float]) -> bool:
    """Whether each of the rewards is equal over the group; the task's own reward does not matter."""
    return all(_with_returns(group, name).is_flat for name in rewards)


def _weighed(group: GroupReturns, parts: Sequence[tuple[float, Returns]]) -> Returns:
    return group.map(
        lambda member, turn_id, _value: math.fsum(weight * (of[member][turn_id] or 0.0) for weight, of in parts)
    )


def _with_returns(group: GroupReturns, name: str) -> GroupReturns:
    values: dict[str, float] = {}
    for episode in group.group.episodes:
        if name not in episode.metrics:
            named = ", ".join(episode.metrics) or "none"
            raise UserError(
                f"algorithm.advantage.rewards: episode {episode.id!r} has no metric {name!r}; it has {named}"
            )
        values[episode.id] = episode.metrics[name]
    return GroupReturns(group.group, group.map(lambda member, _turn, _value: values[member]))


GDPO = Rule(
    GdpoSettings,
    gdpo_advantages,
    "GDPO (arXiv 2601.05242) eq. 4 to 6",
    needs=lambda _: Needs(members=2),
    is_flat=is_flat,
    flat="in which each of {rewards} agrees",
    formula="sum over {rewards} of weight (r - mean) / std of the group, over its spread in the batch",
)
