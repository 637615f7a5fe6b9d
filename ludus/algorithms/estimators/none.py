"""Advantage 0: only what is added to it teaches, such as a teacher's advantages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ludus.algorithms.base import GroupReturns, Needs, Returns, Rule
from ludus.settings import Choice


class NoneSettings(Choice):
    """The task's rewards are not used."""

    kind: Literal["none"] = "none"


def no_advantages(groups: Sequence[GroupReturns]) -> list[Returns]:
    """0 wherever there is a return."""
    return [each.map(lambda _member, _turn, _value: 0.0) for each in groups]


NONE_ADVANTAGE = Rule(
    NoneSettings, no_advantages, "docs/algorithms.md#distillation", needs=lambda _: Needs(flat_groups=True), formula="0"
)
