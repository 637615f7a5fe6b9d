"""On-policy distillation: a teacher's log-ratio of each sampled token becomes a part of its advantage.

Knows: log teacher - log policy, token by token.  Knows not: who the teacher is, rewards.
Glossary: T the teacher, S the policy that the batch begins with, g = log T - log S of a sampled token; both at
temperature 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pydantic

from ludus.algorithms.base import Advantages, GroupReturns, TokenAdvantages
from ludus.algorithms.measured import TokenNumbers
from ludus.settings import Settings

Divergence = Literal["reverse", "forward"]

# exp(20) is 5e8: a token that a policy at this distance sampled must not make a gradient infinite.
LARGEST_GAP = 20.0


class DistillationSettings(Settings):
    """An advantage from `teacher` for each token, added to the task's."""

    weight: float = pydantic.Field(default=1.0, gt=0)
    """Factor on the teacher's advantage."""
    divergence: Divergence = "reverse"
    """The divergence that is minimised: `reverse` is KL(S || T), of the policy from the teacher; `forward` is
    KL(T || S), whose estimate from the policy's tokens is noisier the further the two are apart."""
    bound: float | None = pydantic.Field(default=None, gt=0)
    """Largest absolute value of the teacher's advantage, before its weight. None: no bound."""


def distillation_advantages(
    gaps: Sequence[float], *, divergence: Divergence = "reverse", bound: float | None = None
) -> tuple[float, ...]:
    """A teacher's advantage of each sampled token: g for the reverse divergence, exp(g) - 1 for the forward one.

    Each is chosen so that the policy gradient with it is, in expectation over S, minus the divergence's gradient:
    sum S (log T - log S) grad log S = -grad KL(S || T), and sum S (T / S - 1) grad log S = -grad KL(T || S).
    bound: largest absolute value.
    Source: g: NeMo-RL's MOPD page (MiMo-V2-Flash), thinkingmachines.ai/blog/on-policy-distillation; exp(g) - 1: minus
    the gradient of Schulman's k3 as verl's `distillation_loss` takes it.
    """
    values = gaps if divergence == "reverse" else [math.expm1(max(min(gap, LARGEST_GAP), -LARGEST_GAP)) for gap in gaps]
    return tuple(values if bound is None else [max(min(value, bound), -bound) for value in values])


def add_distillation(
    groups: Sequence[GroupReturns], advantages: Sequence[Advantages], settings: DistillationSettings
) -> list[Advantages]:
    """The advantages of all groups plus the teacher's, token by token, times its weight.

    Turns without credit stay as they are, and so do turns without trainable tokens.
    """
    return [
        {
            member: {turn_id: _taught(each, group.measured.get(turn_id), settings) for turn_id, each in turns.items()}
            for member, turns in of_group.items()
        }
        for group, of_group in zip(groups, advantages, strict=True)
    ]


def _taught(
    task: float | TokenAdvantages | None, numbers: TokenNumbers | None, settings: DistillationSettings
) -> float | TokenAdvantages | None:
    if task is None or numbers is None:
        return task
    assert numbers.teacher_gaps is not None, "an algorithm that needs a teacher gets its numbers"
    teachers = distillation_advantages(numbers.teacher_gaps, divergence=settings.divergence, bound=settings.bound)
    whole = task if isinstance(task, TokenAdvantages) else TokenAdvantages((task,) * len(teachers))
    summed = (own + settings.weight * other for own, other in zip(whole.advantages, teachers, strict=True))
    return replace(whole, advantages=tuple(summed))
