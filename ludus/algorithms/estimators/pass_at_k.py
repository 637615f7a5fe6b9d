"""Pass@k training: the policy is trained for the best of k answers, not for their average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ludus.algorithms.base import GroupReturns, Needs, Returns, Rule, are_equal, gives_nothing
from ludus.settings import Choice


class PassAtKSettings(Choice):
    """The best member of a group is credited with its lead over the second best; k is the group's size."""

    kind: Literal["pass_at_k"] = "pass_at_k"


def pass_at_k_advantages(groups: Sequence[GroupReturns]) -> list[Returns]:
    """A(m,t) = G(m,t) - R of the second best for the best member alone, else 0. Source: arXiv 2503.19595 eq. 5.

    If several members are equally best, up to rounding, none is credited.
    """
    return [_of_group(each) for each in groups]


def _of_group(group: GroupReturns) -> Returns:
    means = group.means()
    best = max(means, key=lambda member: means[member], default=None)
    second = max((mean for member, mean in means.items() if member != best), default=None)
    if best is None or second is None or are_equal((means[best], second)):
        return group.map(lambda _member, _turn, _value: 0.0)
    return group.map(lambda member, _turn, value: value - second if member == best else 0.0)


PASS_AT_K = Rule(
    PassAtKSettings,
    pass_at_k_advantages,
    "arXiv 2503.19595 eq. 5",
    needs=lambda _: Needs(members=2),
    is_flat=gives_nothing(pass_at_k_advantages),
    flat="without a single best",
    formula="G - R of the second best, for the best of the group alone",
)
