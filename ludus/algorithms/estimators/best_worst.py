"""The best member of a group against its worst: a pair for the losses that learn from preferences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ludus.algorithms.base import GroupReturns, Needs, Returns, Rule, are_equal, gives_nothing
from ludus.settings import Choice


class BestWorstSettings(Choice):
    """The member of the highest return is preferred to that of the lowest; the others are left out."""

    kind: Literal["best_worst"] = "best_worst"


def best_worst_advantages(groups: Sequence[GroupReturns]) -> list[Returns]:
    """A(m,t) = 1 for the member of the highest R, -1 for that of the lowest, None for all others.

    Of equal ones the first by id. A group whose members have all the same R, up to rounding, has no pair: None for all.
    Source: Self-Rewarding (arXiv 2401.10020) sec. 2.2, which discards ties as well.
    """
    return [_of_group(each) for each in groups]


def _of_group(group: GroupReturns) -> Returns:
    means = group.means()
    best, worst = (choose(means, key=lambda member: means[member], default="") for choose in (max, min))
    sides = {} if are_equal(means.values()) else {best: 1.0, worst: -1.0}
    return group.map(lambda member, _turn, _value: sides.get(member))


BEST_WORST = Rule(
    BestWorstSettings,
    best_worst_advantages,
    "Self-Rewarding (arXiv 2401.10020) sec. 2.2",
    needs=lambda _: Needs(members=2),
    is_flat=gives_nothing(best_worst_advantages),
    flat="whose best and worst are equal",
    formula="1 for the best of the group, -1 for its worst, the others are left out",
)
