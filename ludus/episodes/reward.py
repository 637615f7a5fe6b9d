"""What an agent returned becomes rewards by turn, or an outcome that names what was wrong with it.

Knows: numbers, mappings, `Result`, the edges between turns.  Knows not: who ran the agent, groups, advantages.
Invariant: every reward that leaves here is a finite float of a turn that exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsFloat

from ludus.algorithms.returns import assign_outcome_reward
from ludus.episodes.ids import turn_id_of
from ludus.types import Outcome, Turn

_ALLOWED = (
    "a number, a mapping of completion id to number, ludus.Result(reward, metrics, metadata), "
    "a tuple (reward, metrics), or None to reject the episode"
)


@dataclass(frozen=True, slots=True)
class Result:
    """What an agent may return when a bare reward is too little."""

    reward: Any
    """A real number, a mapping of completion id to number, or None: the episode is rejected."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Averaged over episodes and shown; `success` is what evaluation reports."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Kept with the episode, read by nobody."""
    left_out: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By completion id the places of sampled tokens that are not to be trained."""
    are_returns: bool = False
    """The rewards are returns already: each is its turn's own, and nothing of it goes back to the turns before."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What is known of an episode once its agent has returned."""

    rewards: Mapping[str, float]
    """By turn id: what credit is computed from."""
    outcome: Outcome
    reward: float | None = None
    """Of the whole episode: the number returned, or the sum of the mapping; of returns, their mean. None: neither was
    returned."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By turn id, as in `Episode`."""
    are_returns: bool = False


class _WrongError(Exception):
    """The value cannot be a reward; the message becomes the outcome's reason."""


def score_episode(returned: object, turns: Sequence[Turn]) -> Scored:
    """Rewards by turn id of what an agent returned after `turns`; the outcome is failed where it cannot be read."""
    try:
        result = _as_result(returned)
        metrics = {str(name): _number(value, f"metric {name!r}") for name, value in result.metrics.items()}
        if result.reward is None:
            return Scored({}, Outcome("rejected", "the agent returned None"), None, metrics, result.metadata)
        if not turns:
            raise _WrongError("the agent never called the model: no chat completion reached the base_url it was given")
        if isinstance(result.reward, Mapping):
            rewards = _named_rewards(result.reward, turns)
            reward = _whole(rewards, result.are_returns)
        else:
            reward = _number(result.reward, "reward")
            rewards = assign_outcome_reward(_completed(turns), reward)
        left_out = _left_out(result.left_out, turns)
        return Scored(rewards, Outcome("ok"), reward, metrics, result.metadata, left_out, result.are_returns)
    except _WrongError as wrong:
        return Scored({}, Outcome("failed", str(wrong)))


def _as_result(returned: object) -> Result:
    if isinstance(returned, tuple):
        if not 2 <= len(returned) <= 3:
            raise _WrongError(f"the agent returned a tuple of {len(returned)} values; allowed: {_ALLOWED}")
        returned = Result(*returned)
    if not isinstance(returned, Result):
        return Result(returned)
    for name, value in (("metrics", returned.metrics), ("metadata", returned.metadata)):
        if not isinstance(value, Mapping):
            raise _WrongError(f"the {name} the agent returned must be a mapping, got {value!r:.200}")
    return returned


def _whole(rewards: Mapping[str, float], are_returns: bool) -> float | None:
    """One number for rewards by turn; returns hold later rewards already, and would be counted twice in a sum."""
    if not rewards:
        return None
    return math.fsum(rewards.values()) / (len(rewards) if are_returns else 1)


def _named_rewards(reward: Mapping[Any, Any], turns: Sequence[Turn]) -> dict[str, float]:
    known = [turn.id for turn in turns]
    by_turn: dict[str, float] = {}
    for completion_id, value in reward.items():
        named = turn_id_of(str(completion_id))
        if named not in known:
            ids = ", ".join(known[:4]) + (", …" if len(known) > 4 else "")
            raise _WrongError(f"the agent rewarded the unknown completion id {completion_id!r}; allowed: {ids}")
        by_turn[named] = _number(value, f"reward of completion {completion_id!r}")
    return by_turn


def _left_out(places: Mapping[str, Sequence[int]], turns: Sequence[Turn]) -> dict[str, tuple[int, ...]]:
    lengths = {turn.id: len(turn.sampled.token_ids) for turn in turns}
    by_turn: dict[str, tuple[int, ...]] = {}
    for completion_id, chosen in places.items():
        named = turn_id_of(str(completion_id))
        if named not in lengths:
            raise _WrongError(f"left_out names the unknown completion id {completion_id!r}")
        wrong = [place for place in chosen if not 0 <= place < lengths[named]]
        if wrong:
            raise _WrongError(f"left_out names token {wrong[0]} of {completion_id!r}, which has {lengths[named]}")
        by_turn[named] = tuple(sorted(set(chosen)))
    return by_turn


def _completed(turns: Sequence[Turn]) -> dict[str, str | None]:
    """What each completed turn follows; aborted turns, whose answers no agent saw, are stepped over."""
    follows = {turn.id: turn.follows for turn in turns}
    aborted = {turn.id for turn in turns if turn.sampled.stop_reason == "abort"}
    if len(aborted) == len(turns):
        raise _WrongError("the agent never received an answer of the model: every call was aborted")
    completed: dict[str, str | None] = {}
    for turn_id in follows:
        before = follows[turn_id]
        while before is not None and before in aborted:
            before = follows[before]
        if turn_id not in aborted:
            completed[turn_id] = before
    return completed


def _number(value: object, what: str) -> float:
    """Any finite real number: int, float, bool, numpy and tensor scalars."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        raise _WrongError(f"the {what} is {value!r:.200} of type {type(value).__name__}; allowed: {_ALLOWED}")
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _WrongError(f"the {what} of type {type(value).__name__} is not one number: {error}") from None
    if not math.isfinite(number):
        raise _WrongError(f"the {what} is {number}; it must be a finite number")
    return number
