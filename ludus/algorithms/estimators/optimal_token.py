"""A baseline for each token: the mean return of the group, weighted by each member's accumulated gradient length.

Knows: returns, who follows whom, the gradient length of each token.  Knows not: tensors, models.
Glossary: w(i) the squared length of the gradient of log pi of token i by the logits, W(i) its sum over the tokens up to
i along the turns that lead there; the place of a token is the number of trained tokens before it.
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

# Source: verl's `epsilon`; avoids a division by 0 where all tokens of a place had probability 1.
_EPS = 1e-8


class OptimalTokenSettings(Choice):
    """The return minus the baseline, at the token's place, that minimises the variance."""

    kind: Literal["optimal_token"] = "optimal_token"


def optimal_token_advantages(groups: Sequence[GroupReturns]) -> list[Advantages]:
    """A(m,i) = G(m,t) - B(i), t the turn of token i, B(i) = sum over members of G W at the place of i / sum of W there.

    A member with several tokens at one place, in parallel turns, counts there with their means. Where only one member
    has a token, as at the end of the longest, B is 0. Tokens that cannot be trained have no place. A group whose
    returns are all equal, up to rounding, gets exactly 0.0 everywhere, even where verl has B = 0.
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
        # a turn without measured tokens is masked later, with the reason that the export finds
        return TokenAdvantages(tuple(value - baselines[place] for place in places)) if places else 0.0

    return {
        member: {
            turn_id: None if value is None else advantage(member, turn_id, value) for turn_id, value in turns.items()
        }
        for member, turns in group.returns.items()
    }


def _summed(turns: Sequence[Turn], group: GroupReturns) -> dict[str, dict[int, float]]:
    """For each turn: W of each of its tokens, by place."""
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
    """B of a place. members: the pairs (G W, W) of each member's tokens there."""
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
