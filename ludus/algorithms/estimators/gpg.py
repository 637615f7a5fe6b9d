"""GPG: the difference to the group's mean, scaled up to make up for groups without a signal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ludus.algorithms.base import GroupReturns, Needs, Returns, Rule
from ludus.algorithms.estimators.group import group_advantages
from ludus.settings import Choice


class GpgSettings(Choice):
    """The difference to the group's mean, as if flat groups were not in the batch."""

    kind: Literal["gpg"] = "gpg"


def gpg_advantages(groups: Sequence[GroupReturns]) -> list[Returns]:
    """A(m,t) = (G(m,t) - mean of R) B / (B - F), with B members in the batch, F of them in groups without a signal.

    Source: GPG (arXiv 2504.02546) eq. 6; verl divides by the number of rewards that are not 0 instead.
    """
    sizes = [len(each.means()) for each in groups]
    informative = sum(size for size, each in zip(sizes, groups, strict=True) if not each.is_flat)
    factor = sum(sizes) / informative if informative else 1.0
    return [
        GroupReturns(each.group, advantages).map(lambda _member, _turn, value: value * factor)
        for each, advantages in zip(groups, group_advantages(groups, scale="none"), strict=True)
    ]


GPG = Rule(
    GpgSettings,
    gpg_advantages,
    "GPG (arXiv 2504.02546) eq. 6",
    needs=lambda _: Needs(members=2),
    formula="(G - mean of the group) members / members of groups with a signal",
)
