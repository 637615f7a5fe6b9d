"""Advantages of turns against the other members of their group: GRPO, RLOO, Dr. GRPO, OPO, MaxRL, REINFORCE.

Knows: members by id, returns of their turns.  Knows not: rewards, tensors.
Glossary: a member m has turns t with returns G(m,t); R(m) is the mean of its returns; b the baseline, s the spread.
Baseline and spread are the first and the second moment of one distribution: draw a member, then one of its turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from ludus.algorithms.base import LEAST_SPREAD, GroupReturns, Needs, Returns, Rule
from ludus.errors import ConfigError, UserError
from ludus.settings import Choice

Baseline = Literal["mean", "leave_one_out", "length", "greedy", "none"]
Scale = Literal["std", "batch", "mean", "none"]


class GroupSettings(Choice):
    """Each return compared with those of the other members of its group."""

    kind: Literal["group"] = "group"
    baseline: Baseline = "mean"
    """leave_one_out is RLOO's; length weighs members by their tokens, as OPO does; greedy is ReMax's, the return of one
    more member that is sampled greedily; none is plain REINFORCE."""
    scale: Scale = "std"
    """What the difference is divided by: the group's spread, that of all groups of the batch (LitePPO), the group's
    mean (MaxRL, of rewards that are not negative), or nothing (Dr. GRPO)."""
    eps: float = Field(default=1e-4, ge=0)
    """Added to a spread."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.baseline == "greedy" and self.scale != "none":
            raise ConfigError(f"baseline 'greedy' has no spread of its own: scale must be 'none', got {self.scale!r}")
        return self


def group_advantages(
    groups: Sequence[GroupReturns], *, baseline: Baseline = "mean", scale: Scale = "std", eps: float = 1e-4
) -> list[Returns]:
    """Advantages by member and turn: A(m,t) = (G(m,t) - b) / s; None where the return is None.

    Turns and members without a return do not enter b and s.
    baseline: `mean` of R over the members; `leave_one_out` that mean without the member itself; `length` the mean
    weighted by the trainable tokens of its turns; `greedy` R of the member that was sampled greedily; `none` 0.
    scale: `std` divides by s + `eps`, where s^2 = sum over m of mean over t of (G(m,t) - mean of R)^2, over M - 1. With
    one return per member that is the sample variance. The spread of R alone would not do: it is zero where members have
    equal means but unequal turns, and the turns' advantages would explode. If s is at most 1e-9 of the largest |G|, the
    returns count as equal and the divisor is 1. `batch` is the same over the members of all groups, `mean` the mean of
    R, `none` 1.
    With a baseline, a group whose returns are all equal, up to rounding, gets exactly 0.0 everywhere.
    Raises UserError if `leave_one_out` meets a group with fewer than two members that have returns, `greedy` one
    without a greedy member, or scale `mean` a negative return.
    Source: see GROUP; each with the return of a turn in place of the reward of a sample.
    """
    whole = _divisor(groups, eps) if scale == "batch" else 1.0
    return [
        each.map(lambda _member, _turn, _value: 0.0)
        if baseline != "none" and each.is_flat
        else _advantages(each, baseline, _scale(each, scale, eps) or whole)
        for each in groups
    ]


def _advantages(group: GroupReturns, baseline: Baseline, divisor: float) -> Returns:
    baselines = _baselines(group, baseline)
    return group.map(lambda member, _turn, value: (value - baselines[member]) / divisor)


def _baselines(group: GroupReturns, baseline: Baseline) -> dict[str, float]:
    means = group.means()
    if baseline == "leave_one_out":
        if len(means) == 1:
            raise UserError("leave_one_out needs at least two members with returns, got 1; use baseline 'mean'")
        total = math.fsum(means.values())
        return {member: (total - mean) / (len(means) - 1) for member, mean in means.items()}
    if baseline == "length":
        lengths = group.lengths()
        weighed = [(lengths[member, turn_id], value) for member, turn_id, value in group.known()]
        total = sum(length for length, _ in weighed)
        # where no token can be trained no advantage is used
        mean = math.fsum(length * value for length, value in weighed) / total if total else 0.0
        return dict.fromkeys(means, mean)
    if baseline == "greedy":
        greedy = [means[each.id] for each in group.group.episodes if each.is_greedy and each.id in means]
        if not greedy:
            raise UserError(
                f"baseline 'greedy' needs a member of temperature 0 with a return; group {group.group.id!r} has none"
            )
        return dict.fromkeys(means, _mean(greedy))
    return dict.fromkeys(means, 0.0 if baseline == "none" else _mean(means.values()))


def _scale(group: GroupReturns, scale: Scale, eps: float) -> float | None:
    """The group's divisor. None: the scale is not one of a single group."""
    if scale == "mean":
        mean = _mean(group.means().values())
        least, *_, largest = sorted((0.0, *(value for _, _, value in group.known())))
        if least < -LEAST_SPREAD * largest:
            raise UserError(f"scale 'mean' is of returns that are not negative, and group {group.group.id!r} has some")
        return mean
    return _divisor([group], eps) if scale == "std" else None


def _divisor(groups: Sequence[GroupReturns], eps: float) -> float:
    """The standard deviation of a turn's return, with equal weight for every member; ddof 1 over members."""
    means = [mean for each in groups for mean in each.means().values()]
    if not means:
        return 1.0
    center = _mean(means)
    squares: dict[str, list[float]] = {}
    for each in groups:
        for member, _, value in each.known():
            squares.setdefault(member, []).append((value - center) ** 2)
    spread = math.sqrt(math.fsum(map(_mean, squares.values())) / max(len(means) - 1, 1))
    largest = max(abs(value) for each in groups for _, _, value in each.known())
    return spread + eps if spread > LEAST_SPREAD * largest else 1.0


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def _needs(settings: GroupSettings) -> Needs:
    # the turns of a lone episode can be compared with their mean; with leave_one_out nothing would be left
    return Needs(
        members=1 if settings.baseline in ("none", "greedy") else 2,
        may_be_turns=settings.baseline == "mean",
        greedy=settings.baseline == "greedy",
    )


def is_flat(group: GroupReturns, *, baseline: Baseline, **_: object) -> bool:
    """Whether all returns are equal; without a baseline, whether all are 0."""
    return not any(value for *_, value in group.known()) if baseline == "none" else group.is_flat


GROUP = Rule(
    GroupSettings,
    group_advantages,
    "DeepSeekMath (arXiv 2402.03300) sec. 4.1.2; leave_one_out: RLOO (arXiv 2402.14740) sec. 3.2; length: OPO (arXiv "
    "2505.23585) eq. 7; greedy: ReMax (arXiv 2310.10505); scale batch: LitePPO (arXiv 2508.08221); mean: MaxRL "
    "(arXiv 2602.02710); none: Dr. GRPO (arXiv 2503.20783) sec. 3.2",
    needs=_needs,
    is_flat=is_flat,
    formula="(G - b) / s, b: {baseline}, s: {scale}",
)
