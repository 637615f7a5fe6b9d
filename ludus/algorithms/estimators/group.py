"""Advantages of turns against the other members of their group: GRPO, RLOO, Dr. GRPO, REINFORCE.

Knows: members by id, returns of their turns.  Knows not: tokens, rewards, tensors.
Glossary: a member m has turns t with returns G(m,t); R(m) is the mean of its returns; b the baseline, s the spread.
Baseline and spread are the first and the second moment of one distribution: draw a member, then one of its turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from ludus.algorithms.base import GroupReturns, Needs, Returns, Rule
from ludus.errors import UserError
from ludus.settings import Choice

Baseline = Literal["mean", "leave_one_out", "none"]
Scale = Literal["std", "none"]

# Of the largest return: what rounding leaves of the spread of equal returns is about 1e-16, and what is left of a true
# spread this small would be noise in the returns themselves.
_LEAST_SPREAD = 1e-9


class GroupSettings(Choice):
    """Each return beside those of the other members of its group."""

    kind: Literal["group"] = "group"
    baseline: Baseline = "mean"
    """leave_one_out is RLOO's; none is plain REINFORCE."""
    scale: Scale = "std"
    """What the difference is divided by; none is Dr. GRPO's."""


def group_advantages(
    returns: Returns,
    *,
    baseline: Baseline = "mean",
    scale: Scale = "std",
    eps: float = 1e-4,
) -> dict[str, dict[str, float | None]]:
    """Advantages by member and turn: A(m,t) = (G(m,t) - b) / s; None where the return is None.

    returns: by member and turn. Turns without a return count nowhere; a member without any has no say in b and s.
    baseline: `mean` of R over the members; `leave_one_out` that mean without the member itself; `none` 0.
    scale: `std` divides by s + `eps`, where s^2 = sum over m of mean over t of (G(m,t) - mean of R)^2, over M - 1. With
    one return per member that is the sample variance. The spread of R alone would not do: where members' means agree
    and their turns differ it is zero, and the advantages of turns explode. Where all returns agree there is no scale to
    divide by: with s of at most 1e-9 of the largest |G| the divisor is 1.
    With a baseline, a group whose returns are all equal, up to rounding, gets exactly 0.0 everywhere.
    Raises UserError if `leave_one_out` meets a group with fewer than two members that have returns.
    Source: DeepSeekMath (arXiv 2402.03300) sec. 4.1.2 for mean and std; RLOO (arXiv 2402.14740) sec. 3.2 for
    leave_one_out; both with the return of a turn in the place of the reward of a sample.
    """
    flat = [value for turns in returns.values() for value in turns.values() if value is not None]
    if baseline != "none" and flat and max(flat) - min(flat) <= _LEAST_SPREAD * max(map(abs, flat)):
        return {
            member: {turn_id: None if value is None else 0.0 for turn_id, value in turns.items()}
            for member, turns in returns.items()
        }
    means = {member: _mean_return(turns) for member, turns in returns.items()}
    known = {member: mean for member, mean in means.items() if mean is not None}
    baselines = _baselines(known, baseline)
    divisor = _divisor(_spread(returns, known), flat, eps) if scale == "std" else 1.0
    return _map_returns(returns, baselines, divisor)


def _of_all_groups(groups: Sequence[GroupReturns], *, baseline: Baseline, scale: Scale) -> list[Returns]:
    return [group_advantages(each.returns, baseline=baseline, scale=scale) for each in groups]


def _needs(settings: GroupSettings) -> Needs:
    # the one answer of a lone episode has a mean to be compared with if its turns differ, but nothing to leave out
    return Needs(members=1 if settings.baseline == "none" else 2, may_be_turns=settings.baseline == "mean")


GROUP = Rule(
    GroupSettings,
    _of_all_groups,
    "DeepSeekMath (arXiv 2402.03300) sec. 4.1.2; leave_one_out: RLOO (arXiv 2402.14740) sec. 3.2; scale none: Dr. GRPO "
    "(arXiv 2503.20783) sec. 3.2",
    needs=_needs,
    formula="A = (G - b) / s, b: {baseline}, s: {scale}",
)


def _mean_return(turns: Mapping[str, float | None]) -> float | None:
    values = [value for value in turns.values() if value is not None]
    return math.fsum(values) / len(values) if values else None


def _baselines(means: Mapping[str, float], baseline: Baseline) -> dict[str, float]:
    if baseline == "none":
        return dict.fromkeys(means, 0.0)
    if baseline == "leave_one_out":
        if len(means) == 1:
            raise UserError("leave_one_out needs at least two members with returns, got 1; use baseline 'mean'")
        return {
            member: math.fsum(mean for other, mean in means.items() if other != member) / (len(means) - 1)
            for member in means
        }
    return dict.fromkeys(means, math.fsum(means.values()) / len(means)) if means else {}


def _divisor(spread: float, returns: Sequence[float], eps: float) -> float:
    largest = max(map(abs, returns), default=0.0)
    return spread + eps if spread > _LEAST_SPREAD * largest else 1.0


def _spread(returns: Returns, means: Mapping[str, float]) -> float:
    """The standard deviation of a turn's return, every member weighing the same; ddof 1 over members."""
    if not means:
        return 0.0
    center = math.fsum(means.values()) / len(means)
    second = math.fsum(_mean_square(returns[member], center) for member in means)
    return math.sqrt(second / max(len(means) - 1, 1))


def _mean_square(turns: Mapping[str, float | None], center: float) -> float:
    squares = [(value - center) ** 2 for value in turns.values() if value is not None]
    return math.fsum(squares) / len(squares)


def _map_returns(
    returns: Returns, baselines: Mapping[str, float], divisor: float
) -> dict[str, dict[str, float | None]]:
    return {
        member: {
            turn_id: None if value is None else (value - baselines[member]) / divisor
            for turn_id, value in turns.items()
        }
        for member, turns in returns.items()
    }
