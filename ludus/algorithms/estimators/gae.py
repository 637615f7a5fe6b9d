"""Generalised advantage estimation along the edges of credit: PPO with a critic.

Knows: rewards of turns, who follows whom, what a critic expected before each token.  Knows not: tensors, the critic.
Glossary: V(i) the critic's value before token i, r(t) the reward of turn t, A advantage, G return, lam the lambda of
GAE. A turn has its reward at its last token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from ludus.algorithms.base import Advantages, GroupReturns, Needs, Rule, TokenAdvantages
from ludus.settings import Choice, Idle
from ludus.types import Episode

Unit = Literal["token", "turn"]


class GaeSettings(Choice):
    """Generalised advantage estimation: returns compared with the values of a critic."""

    kind: Literal["gae"] = "gae"
    lam: float = Field(default=1.0, ge=0, le=1)
    """The lambda of GAE. 1: return minus value; 0: only one step ahead."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """The discount from one token of a turn to the next; from turn to turn it is `rollout.agent.turn_discount`."""
    unit: Unit = "token"
    """What counts as one step. With `turn`, a turn has the value of its first token, and one advantage."""
    whiten: bool = True
    """Normalise advantages to mean 0 and variance 1 over the tokens of the batch."""

    def idle(self) -> list[Idle]:
        return [Idle("gamma", "unit is 'turn'")] if self.unit == "turn" and self.is_set("gamma") else []


class _Step(NamedTuple):
    """Value and advantage at the start of a turn, which the turn before it uses; or their means over several turns."""

    value: float
    advantage: float


def gae_advantages(
    groups: Sequence[GroupReturns], *, lam: float, gamma: float, unit: Unit, whiten: bool
) -> list[Advantages]:
    """By token delta(i) = r(i) + g V(next) - V(i), A(i) = delta(i) + g lam A(next), and its value target A(i) + V(i).

    next: the token after i in its turn, g = gamma; after a turn's last token the mean over the first tokens of the
    turns that follow it and have a return, g = the turn discount; nothing follows a leaf. Tokens that cannot be trained
    are skipped; a turn without trainable tokens passes its reward on. So with lam = 1
    A(i) = gamma^(tokens after i in its turn) G(t) - V(i), with the return of the turn.
    With token penalties, unit `token` charges each token its own penalty rather than the turn's reward.
    whiten: (A - mean) / sqrt(variance + 1e-8) over all tokens, ddof 1; targets are made of A before.
    Source: GAE (arXiv 1506.02438) eq. 11, 12 and 16; passing over and whitening as verl; by turn as AReaL.
    """
    credit: dict[tuple[str, str], TokenAdvantages] = {}
    for each in groups:
        for episode in each.group.episodes:
            of_turns = _of_episode(episode, each, lam=lam, gamma=gamma, unit=unit)
            credit.update({(episode.id, turn_id): tokens for turn_id, tokens in of_turns.items()})
    if whiten:
        credit = _whitened(credit)
    # a turn with a return but without measured tokens is masked later, with the reason that the export finds
    return [
        {
            member: {
                turn_id: None if value is None else credit.get((member, turn_id), 0.0)
                for turn_id, value in turns.items()
            }
            for member, turns in each.returns.items()
        }
        for each in groups
    ]


def _of_episode(
    episode: Episode, group: GroupReturns, *, lam: float, gamma: float, unit: Unit
) -> dict[str, TokenAdvantages]:
    """Credit of each measured turn, computed backwards along the edges of credit."""
    later: dict[str | None, list[_Step]] = {}
    found: dict[str, TokenAdvantages] = {}
    discount = group.turn_discount
    for turn in reversed(episode.session.turns):
        steps, reward = later.get(turn.id, []), episode.rewards.get(turn.id)
        if reward is None and not steps:
            continue
        ahead = _Step(*(math.fsum(each) / len(steps) for each in zip(*steps, strict=True))) if steps else _Step(0, 0)
        values = group.measured[turn.id].values if turn.id in group.measured else None
        gain = (reward or 0.0) + discount * ahead.value
        if values is None:
            first = _Step(gain, discount * ahead.advantage)
        else:
            stop = _Step(gain, discount * lam * ahead.advantage)
            found[turn.id] = (
                _by_token(values, stop, group.penalties.get(turn.id), gamma=gamma, lam=lam)
                if unit == "token"
                else _by_turn(values, stop)
            )
            first = _Step(values[0], found[turn.id].advantages[0])
        follows = None if episode.has_returns else turn.follows
        later.setdefault(follows, []).append(first)
    return found


def _by_token(
    values: Sequence[float], stop: _Step, penalties: Sequence[float] | None, *, gamma: float, lam: float
) -> TokenAdvantages:
    """stop: value and advantage after the last token, discounted.  penalties: of each token. None: there are none."""
    costs = [0.0] * len(values) if penalties is None else penalties
    stop = stop._replace(value=stop.value + math.fsum(costs))
    advantages: list[float] = []
    for value, cost in zip(reversed(values), reversed(costs), strict=True):
        advantage = stop.value - cost - value + stop.advantage
        advantages.append(advantage)
        stop = _Step(gamma * value, gamma * lam * advantage)
    return _with_targets(values, advantages[::-1], values)


def _by_turn(values: Sequence[float], stop: _Step) -> TokenAdvantages:
    advantage = stop.value - values[0] + stop.advantage
    return _with_targets(values, [advantage] * len(values), [values[0]] * len(values))


def _with_targets(values: Sequence[float], advantages: Sequence[float], expected: Sequence[float]) -> TokenAdvantages:
    targets = tuple(advantage + value for advantage, value in zip(advantages, expected, strict=True))
    return TokenAdvantages(tuple(advantages), tuple(values), targets)


def _whitened(credit: Mapping[tuple[str, str], TokenAdvantages]) -> dict[tuple[str, str], TokenAdvantages]:
    every = [advantage for tokens in credit.values() for advantage in tokens.advantages]
    mean = math.fsum(every) / max(len(every), 1)
    variance = math.fsum((each - mean) ** 2 for each in every) / max(len(every) - 1, 1)
    divisor = math.sqrt(variance + 1e-8)
    return {
        key: TokenAdvantages(
            tuple((each - mean) / divisor for each in tokens.advantages), tokens.values, tokens.value_targets
        )
        for key, tokens in credit.items()
    }


GAE = Rule(
    GaeSettings,
    gae_advantages,
    "GAE (arXiv 1506.02438) eq. 11, 12 and 16",
    needs=lambda _: Needs(flat_groups=True, measured=frozenset({"values"})),
    formula="delta + g {lam} A(next), delta = r + g V(next) - V, by {unit}, whitened: {whiten}; g: {gamma} within a "
    "turn, the discount of G from turn to turn",
)
