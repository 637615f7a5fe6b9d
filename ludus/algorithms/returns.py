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
    None: the turn has neither a reward nor a following turn with a return. A reward of 0 is a return.
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


def _check_order(follows: Mapping[str, str | None]) -> None:
    seen: set[str] = set()
    for turn_id, followed in follows.items():
        if followed is not None and followed not in seen:
            raise InternalError(f"turn {turn_id!r} follows {followed!r}, which is not among the turns before it")
        seen.add(turn_id)
