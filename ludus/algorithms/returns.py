"""Returns of turns along the edges of credit.

Knows: turn ids, who follows whom, rewards.  Knows not: tokens, groups, tensors.
Glossary: r(t) reward of a turn, G(t) its return, gamma the discount from one turn to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ludus.errors import InternalError, UserError


def turn_returns(
    follows: Mapping[str, str | None], rewards: Mapping[str, float], *, turn_discount: float = 1.0
) -> dict[str, float | None]:
    """Return of every turn: G(t) = r(t) + gamma * mean of G(u) over the turns u that follow t and have a return.

    follows: the turn that each turn follows, or None at a root; turns in the order in which they finished.
    None where no return reaches: the turn has no reward, and none of those that follow it has a return. A reward
    of 0 is a return.
    Raises UserError if a reward names an unknown turn or is not finite, InternalError if a turn follows a later one.
    """
    for turn_id, reward in rewards.items():
        if turn_id not in follows:
            raise UserError(f"reward {reward} names unknown turn {turn_id!r}; the episode's turns: {list(follows)}")
        if not math.isfinite(reward):
            raise UserError(f"the reward of turn {turn_id!r} must be a finite number, got {reward}")
    _check_order(follows)
    later: dict[str, list[float]] = {turn_id: [] for turn_id in follows}
    returns: dict[str, float | None] = {}
    for turn_id, followed in reversed(list(follows.items())):
        value: float | None = float(rewards[turn_id]) if turn_id in rewards else None
        if later[turn_id]:
            value = (value or 0.0) + turn_discount * (math.fsum(later[turn_id]) / len(later[turn_id]))
        returns[turn_id] = value
        if followed is not None and value is not None:
            later[followed].append(value)
    return {turn_id: returns[turn_id] for turn_id in follows}


def assign_outcome_reward(follows: Mapping[str, str | None], reward: float) -> dict[str, float]:
    """Rewards by turn when an episode has one number: it goes to the last turn of every root of credit.

    The last turn of the episode is among them. Turns that follow several ways from one root share its one reward:
    those on the other branches get no return.
    follows: completed turns alone, otherwise as in `turn_returns`.
    """
    _check_order(follows)
    root_of: dict[str, str] = {}
    last_of: dict[str, str] = {}
    for turn_id, followed in follows.items():
        root_of[turn_id] = turn_id if followed is None else root_of[followed]
        last_of[root_of[turn_id]] = turn_id
    return dict.fromkeys(last_of.values(), float(reward))


def _check_order(follows: Mapping[str, str | None]) -> None:
    seen: set[str] = set()
    for turn_id, followed in follows.items():
        if followed is not None and followed not in seen:
            raise InternalError(f"turn {turn_id!r} follows {followed!r}, which is not among the turns before it")
        seen.add(turn_id)
