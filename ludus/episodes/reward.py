"""The one rule that turns given rewards into rewards of turns, whoever gives them and when.

Knows: numbers, mappings, `Result`, turns and the edges between them.  Knows not: who ran the agent, groups, advantages.
Invariants: every resulting reward is a finite float of an existing turn; nothing depends on the order in which turns
finished.

A bare number is the reward of every leaf: every completed turn that no completed turn follows. If an agent had several
answers to the same prompt to choose from and went on with some of them, the others are "not chosen": they do not get
the number, and are not trained. A mapping names the turn of each number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, SupportsFloat

from ludus.algorithms.returns import turn_returns
from ludus.episodes.conversation import call_key, message_key
from ludus.episodes.ids import turn_id_of
from ludus.episodes.outcome import NO_TURN
from ludus.errors import AgentError, UserError
from ludus.types import Episode, Turn

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
    """Averaged over episodes and shown; `success` is the one that evaluations report."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Kept with the episode; not used by training."""
    left_out: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By completion id: indices of sampled tokens that are not to be trained."""
    are_returns: bool = False
    """The rewards are returns already: they belong to their turns only, and no credit goes back to earlier turns."""


@dataclass(frozen=True, slots=True)
class Given:
    """The checked result of an episode."""

    by_turn: Mapping[str, float] = field(default_factory=dict)
    """The rewards of turns, from which credit is computed."""
    whole: float | None = None
    """Reward of the whole episode: the number, or the sum of the mapping; for returns, their mean. None: none given."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By turn id, as in `Episode`."""
    are_returns: bool = False
    is_rejected: bool = False


# ---- which turns a number is for


def leaves(
    turns: Sequence[Turn], *, without: Collection[str] = frozenset(), all_chosen: bool = False
) -> tuple[str, ...]:
    """The turns that get a bare number. Raises AgentError if every call of the model was aborted.

    without: turns to ignore.  all_chosen: do not exclude answers that were not chosen.
    """
    if all(turn.sampled.stop_reason == "abort" for turn in turns):
        raise AgentError("the agent never received an answer of the model: every call was aborted", code="no_turn")
    follows = _follows(turns, without)
    passed = set(follows.values())
    if not all_chosen:
        passed |= not_chosen(turns, without=without)
    return tuple(turn_id for turn_id in follows if turn_id not in passed)


def not_chosen(turns: Sequence[Turn], *, without: Collection[str] = frozenset()) -> frozenset[str]:
    """Answers that their agent did not go on with, while it did with another that it could choose instead."""
    by_id = {turn.id: turn for turn in turns}
    followers: dict[str | None, list[Turn]] = {}
    for turn_id, before in _follows(turns, without).items():
        followers.setdefault(before, []).append(by_id[turn_id])
    found: set[str] = set()
    for before, after in followers.items():
        for alike in _of_one_prompt(after):
            gone_on_at = {
                turn.id: min(later.started_at for later in on)
                for turn in alike
                if (on := [later for later in followers.get(turn.id, ()) if _goes_on(later, turn)])
            }
            for members in _alternatives(alike, gone_on_at, by_id.get(before or "")):
                left = {turn.id for turn in members} - gone_on_at.keys()
                if len(left) < len(members):
                    found |= left
    return frozenset(found)


def masked_answers(episode: Episode) -> frozenset[str]:
    """The turns of an ended episode that are not trained because another answer was chosen, except those that were
    given a reward by name."""
    if episode.has_returns:
        return frozenset()
    turns = episode.session.turns
    return not_chosen(turns, without=_wholly_left_out(episode.left_out, turns)) - episode.rewards.keys()


def reached_turns(episode: Episode) -> frozenset[str]:
    """The turns of an ended episode that a reward reaches, and whose answer was not passed over for another."""
    reached = set(episode.rewards)
    for turn in () if episode.has_returns else reversed(episode.session.turns):
        if turn.id in reached and turn.follows is not None:
            reached.add(turn.follows)
    return frozenset(reached) - masked_answers(episode)


def _follows(turns: Iterable[Turn], without: Collection[str]) -> dict[str, str | None]:
    """The turn that each completed turn follows, skipping aborted turns and those in `without`."""
    follows = {turn.id: turn.follows for turn in turns}
    over = {turn.id for turn in turns if turn.sampled.stop_reason == "abort" or turn.id in without}
    completed: dict[str, str | None] = {}
    for turn_id, before in follows.items():
        while before is not None and before in over:
            before = follows[before]
        if turn_id not in over:
            completed[turn_id] = before
    return completed


def _of_one_prompt(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Sets of two or more turns of one agent that answer equal messages with equal tools."""
    groups: dict[tuple[str, int, str | None], list[list[Turn]]] = {}  # by something cheap to compare
    for turn in turns if len(turns) > 1 else ():
        last = turn.messages[-1].content if turn.messages else None
        alike = groups.setdefault((turn.agent, len(turn.messages), last), [])
        same = [each for each in alike if each[0].messages == turn.messages and each[0].tools == turn.tools]
        if same:
            same[0].append(turn)
        else:
            alike.append([turn])
    return [members for alike in groups.values() for members in alike if len(members) > 1]


def _alternatives(alike: Sequence[Turn], gone_on_at: Mapping[str, float], before: Turn | None) -> list[list[Turn]]:
    """Divides turns of one prompt into sets, from each of which the agent could choose.

    The choices of a request are one set. So are requests that came one after another, each when all earlier ones were
    answered and none had been gone on with: then the question was asked again. Where requests overlap, parallel workers
    ask the same; and as many requests as `before`, the turn that all follow, has equal tool calls are one for each.
    gone_on_at: when a turn was first gone on with.
    """
    requests: dict[float, list[Turn]] = {}
    for turn in sorted(alike, key=lambda turn: turn.started_at):
        requests.setdefault(turn.started_at, []).append(turn)
    ends = accumulate((max(turn.finished_at for turn in choices) for choices in requests.values()), max)
    overlap = any(later < end for end, later in zip(ends, [*requests][1:], strict=False))
    calls = () if before is None or _goes_on(alike[0], before) else before.reply.tool_calls
    if overlap or len(requests) <= max(Counter(map(call_key, calls)).values(), default=0):
        return list(requests.values())
    sets: list[list[Turn]] = [[]]
    for asked_at, choices in requests.items():
        if any(gone_on_at.get(turn.id, math.inf) < asked_at for turn in sets[-1]):
            sets.append([])
        sets[-1] += choices
    return sets


def _goes_on(later: Turn, turn: Turn) -> bool:
    """Whether the prompt of `later`, which follows `turn`, contains its tokens or its reply; that it came next in time
    is not enough."""
    if later.fork is None and later.prefix == turn.id:
        return True
    reply = message_key(turn.reply)
    return any(message_key(message) == reply for message in later.messages)


# ---- what was given


def read(returned: object, turns: Sequence[Turn]) -> Given:
    """The checked result of an agent that made `turns`. Raises AgentError that names what is wrong with it."""
    result = _as_result(returned)
    metrics = {str(name): _number(value, f"metric {name!r}", "metrics") for name, value in result.metrics.items()}
    if result.reward is None:
        return Given(metrics=metrics, metadata=result.metadata, is_rejected=True)
    sheet = RewardSheet()
    sheet.are_returns = result.are_returns
    left_out = _left_out(result.left_out, turns) if turns else {}
    sheet.add(result.reward, turns, without=_wholly_left_out(left_out, turns))
    return Given(sheet.by_turn, sheet.whole, metrics, result.metadata, left_out, result.are_returns)


class RewardSheet:
    """The rewards of one session so far. May be read from any thread; only one may add at a time."""

    def __init__(self) -> None:
        self.are_returns = False
        """The rewards are returns."""
        self._named: dict[str, float] = {}
        self._bare: dict[str, _Bare] = {}

    def __repr__(self) -> str:
        return f"RewardSheet({self.by_turn})"

    @property
    def by_turn(self) -> dict[str, float]:
        """All rewards by turn; one that names its turn takes precedence over a bare number."""
        # copies first: another thread may add one meanwhile
        return {**{turn_id: bare.value for turn_id, bare in dict(self._bare).items()}, **dict(self._named)}

    @property
    def whole(self) -> float | None:
        """The reward of the whole session: the sum, in which a bare number counts once even if it went to several
        leaves; for returns, which include later rewards, the mean. None: nothing was given."""
        if self.are_returns:
            values = list(self.by_turn.values())
            return math.fsum(values) / len(values) if values else None
        bare = {id(bare): bare.value for turn_id, bare in dict(self._bare).items() if turn_id not in self._named}
        values = [*bare.values(), *self._named.values()]
        return math.fsum(values) if values else None

    def add(self, value: object, turns: Sequence[Turn], *, without: Collection[str] = frozenset()) -> dict[str, float]:
        """Add a reward; returns it by turn.

        value: a number, for every leaf of `turns` as they are now, where it replaces an earlier number; or a mapping of
        completion id, in the form of any protocol, to number.
        Raises AgentError if there are no turns, if a named turn does not exist, or for anything but finite numbers.
        """
        if not turns:
            raise AgentError(NO_TURN, code="no_turn")
        if isinstance(value, Mapping):
            named = _named(value, turns)
            self._named.update(named)
            return named
        bare = _Bare(_number(value, "reward", "reward"))
        new = dict.fromkeys(leaves(turns, without=without) or leaves(turns), bare.value)
        self._bare.update(dict.fromkeys(new, bare))
        return new

    def discount(self, turns: Iterable[Turn], turn_discount: float) -> None:
        """Turn the rewards into returns; turns without a return have none. Raises UserError if called twice."""
        if self.are_returns:
            raise UserError("the rewards of this session were discounted already; set new ones in a new session")
        if not (math.isfinite(turn_discount) and 0.0 <= turn_discount <= 1.0):
            raise UserError(f"turn_discount={turn_discount} must be from 0 to 1")
        returns = turn_returns({turn.id: turn.follows for turn in turns}, self.by_turn, turn_discount=turn_discount)
        self._named = {turn_id: value for turn_id, value in returns.items() if value is not None}
        self._bare = {}
        self.are_returns = True


@dataclass(frozen=True, slots=True, eq=False)
class _Bare:
    """One bare number; the same object for all leaves that got it."""

    value: float


def _as_result(returned: object) -> Result:
    if isinstance(returned, tuple):
        if not 2 <= len(returned) <= 3:
            raise _wrong(f"the agent returned a tuple of {len(returned)} values; allowed: {_ALLOWED}", "reward")
        returned = Result(*returned)
    if not isinstance(returned, Result):
        return Result(returned)
    for name, value in (("metrics", returned.metrics), ("metadata", returned.metadata)):
        if not isinstance(value, Mapping):
            raise _wrong(f"the {name} the agent returned must be a mapping, got {value!r:.200}", name)
    return returned


def _named(rewards: Mapping[Any, Any], turns: Sequence[Turn]) -> dict[str, float]:
    known = [turn.id for turn in turns]
    by_turn: dict[str, float] = {}
    for completion_id, value in rewards.items():
        named = turn_id_of(str(completion_id))
        if named not in known:
            ids = ", ".join(known[:4]) + (", …" if len(known) > 4 else "")
            raise AgentError(
                f"the agent rewarded the unknown completion id {completion_id!r}; allowed: {ids}",
                status=404,
                code="completion_not_found",
                param="completion_id",
            )
        by_turn[named] = _number(value, f"reward of completion {completion_id!r}", "reward")
    return by_turn


def _left_out(positions: Mapping[str, Sequence[int]], turns: Sequence[Turn]) -> dict[str, tuple[int, ...]]:
    lengths = {turn.id: len(turn.sampled.token_ids) for turn in turns}
    by_turn: dict[str, tuple[int, ...]] = {}
    for completion_id, chosen in positions.items():
        named = turn_id_of(str(completion_id))
        if named not in lengths:
            raise _wrong(f"left_out names the unknown completion id {completion_id!r}", "left_out")
        wrong = [position for position in chosen if not 0 <= position < lengths[named]]
        if wrong:
            raise _wrong(
                f"left_out names token {wrong[0]} of {completion_id!r}, which has {lengths[named]}", "left_out"
            )
        by_turn[named] = tuple(sorted(set(chosen)))
    return by_turn


def _wholly_left_out(left_out: Mapping[str, Sequence[int]], turns: Iterable[Turn]) -> frozenset[str]:
    return frozenset(
        turn.id for turn in turns if turn.id in left_out and len(left_out[turn.id]) == len(turn.sampled.token_ids)
    )


def _number(value: object, what: str, param: str) -> float:
    """Any finite real number: int, float, bool, numpy and tensor scalars."""
    if isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
        raise _wrong(f"the {what} is {value!r:.200} of type {type(value).__name__}; allowed: {_ALLOWED}", param)
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _wrong(f"the {what} of type {type(value).__name__} is not one number: {error}", param) from None
    if not math.isfinite(number):
        raise _wrong(f"the {what} is {number}; it must be a finite number", param)
    return number


def _wrong(message: str, param: str) -> AgentError:
    return AgentError(message, code="invalid_value", param=param)
