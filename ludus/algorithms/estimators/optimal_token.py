"""A baseline for each token: what members of its group got, weighed by how far their gradients have gone until there.

Knows: returns, who follows whom, how long the gradient of each token by its logits is.  Knows not: tensors, models.
Glossary: w(i) the squared length of the gradient of log pi of token i by the logits, W(i) its sum over the tokens up to
i, along the turns that lead there; a place is how many trained tokens come before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from ludus.algorithms.base import Advantages, GroupReturns, Needs, Rule, TokenAdvantages
from ludus.algorithms.measured import Floats
from ludus.settings import Choice
from ludus.types import Turn

# Source: verl's `epsilon`; where no token of a place could have been another one, nothing is divided by 0.
_EPS = 1e-8


class OptimalTokenSettings(Choice):
    """The return of a token less the baseline at its place that has the least variance."""

    kind: Literal["optimal_token"] = "optimal_token"


def optimal_token_advantages(groups: Sequence[GroupReturns]) -> list[Advantages]:
    """A(m,i) = G(m,t) - B(i), t the turn of token i, B(i) = sum over members of G W at the place of i / sum of W there.

    A member that has several tokens at one place, in turns beside each other, counts there with their means. Where one
    member alone has a token, which is so at the end of the longest, B is 0. Tokens that cannot be trained have no
    place. A group whose returns are all equal, up to rounding, gets exactly 0.0 everywhere, also where verl has B = 0.
    Source: The Optimal Token Baseline (arXiv 2602.07078), with its logit-gradient proxy; as verl's
    `tir_optimal_token_baseline`, and on episodes of one turn its `optimal_token_baseline`.
    """
    return [_of_group(each) for each in groups]


def _of_group(group: GroupReturns) -> Advantages:
    if group.is_flat:
        return group.map(lambda _member, _turn, _value: 0.0)
    sums = {episode.id: _summed(episode.session.turns, group) for episode in group.group.episodes}
    at_place: dict[int, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for member, turn_id, value in group.known():
        for place, weight in sums[member].get(turn_id, {}).items():
            at_place[place][member].append((value * weight, weight))
    baselines = {place: _baseline(list(members.values())) for place, members in at_place.items()}

    def advantage(member: str, turn_id: str, value: float) -> float | TokenAdvantages:
        places = sums[member].get(turn_id)
        # a turn of which nothing was measured is masked, for a reason that the export knows
        return TokenAdvantages(tuple(value - baselines[place] for place in places)) if places else 0.0

    return {
        member: {
            turn_id: None if value is None else advantage(member, turn_id, value) for turn_id, value in turns.items()
        }
        for member, turns in group.returns.items()
    }


def _summed(turns: Sequence[Turn], group: GroupReturns) -> dict[str, dict[int, float]]:
    """By turn and place of each of its tokens the sum of w up to there."""
    found: dict[str, dict[int, float]] = {}
    ends: dict[str | None, tuple[int, float]] = {None: (0, 0.0)}
    for turn in turns:
        place, before = ends[turn.follows]
        numbers = group.measured.get(turn.id)
        lengths: Floats = () if numbers is None or numbers.logit_gradients is None else numbers.logit_gradients
        _, *sums = accumulate(lengths, initial=before)
        found[turn.id] = dict(enumerate(sums, place))
        ends[turn.id] = (place + len(lengths), sums[-1] if sums else before)
    return found


def _baseline(members: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Of the pairs G W and W of each member at a place."""
    if len(members) < 2:
        return 0.0
    over, under = (
        math.fsum(math.fsum(pair[side] for pair in pairs) / len(pairs) for pairs in members) for side in (0, 1)
    )
    return over / (under + _EPS)


OPTIMAL_TOKEN = Rule(
    OptimalTokenSettings,
    optimal_token_advantages,
    "The Optimal Token Baseline (arXiv 2602.07078)",
    needs=lambda _: Needs(members=2, measured=frozenset({"logit_gradients"})),
    formula="G - B of the token's place, B = sum of G W / sum of W over the group's tokens there, W the sum of "
    "1 - 2 pi + sum of squared probabilities up to the token; 0 where one member alone has a token",
)
