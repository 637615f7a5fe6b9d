"""Credit against returns computed by hand: episodes that branch, whose reasoning is stripped, that call sub-agents.

Knows: messages, the session graph, returns.  Knows not: models; the tokens here are the bytes of the text.
Each episode goes the way a recorder's does: what was asked finds the turn it follows, tokens fork where the text does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ludus.algo.returns import assign_outcome_reward, turn_returns
from ludus.session.graph import SessionGraph
from ludus.types import ForkReason, Message, Sampled, Sampling, ToolCall, Turn

TOLERANCE = 1e-12
"""The returns are sums and means of a few short numbers: anything above rounding is a mistake."""


@dataclass(frozen=True, slots=True)
class CreditRow:
    """One turn: what the graph made of it, its return, and the return computed by hand."""

    episode: str
    turn: str
    follows: str | None
    fork: ForkReason | None
    reward: float | None
    """None: the agent gave this turn no reward."""
    got: float | None
    """None: no return reaches the turn."""
    expected: float | None

    @property
    def abs_diff(self) -> float:
        """Infinite where only one of the two is None."""
        if self.got is None or self.expected is None:
            return 0.0 if self.got is self.expected else math.inf
        return abs(self.got - self.expected)


@dataclass(frozen=True, slots=True)
class CreditResult:
    rows: tuple[CreditRow, ...]

    @property
    def max_abs_diff(self) -> float:
        return max(row.abs_diff for row in self.rows)

    @property
    def ok(self) -> bool:
        return self.max_abs_diff <= TOLERANCE

    def to_json(self) -> dict[str, object]:
        return {"check": "credit", "turns": len(self.rows), "max_abs_diff": self.max_abs_diff, "ok": self.ok}


def verify_credit() -> CreditResult:
    """Every episode of this file, turn by turn."""
    episodes = (_outcome(), _discounted(), _branching(), _reasoning_stripped(), _sub_agent(), _unreached())
    return CreditResult(tuple(row for rows in episodes for row in rows))


class _Play:
    """One episode: an agent that speaks, a model whose template shows the reasoning of the last reply only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._graph = SessionGraph(name)

    def ask(self, turn_id: str, messages: list[Message], reply: Message, *, agent: str = "") -> list[Message]:
        """The conversation with the reply, ready to go on."""
        match = self._graph.match(messages, agent)
        prompt = _encode(messages)
        prefix, fork = self._extended(match.follows, prompt, was_edited=not match.exact)
        self._graph.add_turn(
            turn_id=turn_id,
            prompt_ids=prompt,
            prefix=prefix,
            follows=None if match.follows is None else match.follows.id,
            fork=fork,
            messages=messages,
            reply=reply,
            sampled=_sampled(reply),
            sampling=Sampling(),
            agent=agent,
        )
        return [*messages, reply]

    def rows(
        self, rewards: Mapping[str, float], expected: Mapping[str, float | None], *, turn_discount: float = 1.0
    ) -> list[CreditRow]:
        turns = self._graph.snapshot().turns
        returns = turn_returns({turn.id: turn.follows for turn in turns}, rewards, turn_discount=turn_discount)
        return [
            CreditRow(
                episode=self.name,
                turn=turn.id,
                follows=turn.follows,
                fork=turn.fork,
                reward=rewards.get(turn.id),
                got=returns[turn.id],
                expected=expected[turn.id],
            )
            for turn in turns
        ]

    def outcome_rewards(self, reward: float) -> dict[str, float]:
        return assign_outcome_reward({turn.id: turn.follows for turn in self._graph.snapshot().turns}, reward)

    def _extended(
        self, follows: Turn | None, prompt: tuple[int, ...], *, was_edited: bool
    ) -> tuple[str | None, ForkReason | None]:
        if follows is None:
            return None, None
        path = self._graph.path_ids(follows.id)
        if prompt[: len(path)] == path:
            return follows.id, None
        return None, "edit" if was_edited else "reasoning_stripped"


def _outcome() -> list[CreditRow]:
    """A bare number reaches every turn before it undiminished: 1 = 1 = 1."""
    play = _Play("outcome")
    said = play.ask("a", [_user("guess")], _says("10"))
    said = play.ask("b", [*said, _user("lower")], _says("5"))
    play.ask("c", [*said, _user("higher")], _says("7"))
    return play.rows(play.outcome_rewards(1.0), {"a": 1.0, "b": 1.0, "c": 1.0})


def _discounted() -> list[CreditRow]:
    """r = 0.2, 0.5, 1 at discount 0.5: c = 1; b = 0.5 + 0.5 · 1 = 1; a = 0.2 + 0.5 · 1 = 0.7."""
    play = _Play("discounted")
    said = play.ask("a", [_user("guess")], _says("10"))
    said = play.ask("b", [*said, _user("lower")], _says("5"))
    play.ask("c", [*said, _user("higher")], _says("7"))
    return play.rows({"a": 0.2, "b": 0.5, "c": 1.0}, {"a": 0.7, "b": 1.0, "c": 1.0}, turn_discount=0.5)


def _branching() -> list[CreditRow]:
    """Three ways to go on from `a`, one of them edited: b = 1, c = 0, d = e = 0.5; a = (1 + 0 + 0.5) / 3 = 0.5."""
    play = _Play("branching")
    said = play.ask("a", [_user("plan")], _says("first this"))
    play.ask("b", [*said, _user("go on")], _says("yes"))
    play.ask("c", [*said, _user("try otherwise")], _says("no"))
    edited = [_user("plan"), _says("first this, corrected")]
    said = play.ask("d", [*edited, _user("go on")], _says("well"))
    play.ask("e", [*said, _user("and then?")], _says("done"))
    return play.rows({"b": 1.0, "c": 0.0, "e": 0.5}, {"a": 0.5, "b": 1.0, "c": 0.0, "d": 0.5, "e": 0.5})


def _reasoning_stripped() -> list[CreditRow]:
    """The template drops earlier thinking, so tokens fork at every turn; the outcome still reaches the first."""
    play = _Play("reasoning stripped")
    said = play.ask("a", [_user("guess")], _says("10", reasoning="the middle"))
    said = play.ask("b", [*said, _user("lower")], _says("5", reasoning="half of it"))
    play.ask("c", [*said, _user("higher")], _says("7", reasoning="between"))
    return play.rows(play.outcome_rewards(-2.0), {"a": -2.0, "b": -2.0, "c": -2.0})


def _sub_agent() -> list[CreditRow]:
    """A tool call is served by another agent, whose last turn was given 0.5 of its own and the main agent's 1.

    h2 = 0.5; h1 = 0.5; m2 = 1; m1 is followed by h1 and m2: (0.5 + 1) / 2 = 0.75.
    """
    play = _Play("sub-agent")
    call = ToolCall("call_1", "research", '{"topic": "the capital of France"}')
    asked = play.ask("m1", [_user("what is it?")], Message("assistant", None, tool_calls=(call,)))
    helper = play.ask("h1", [_user("find the capital of France")], _says("where to look?"), agent="helper")
    play.ask("h2", [*helper, _user("an atlas")], _says("Paris"), agent="helper")
    play.ask("m2", [*asked, Message("tool", "Paris", tool_call_id="call_1")], _says("It is Paris."))
    return play.rows({"h2": 0.5, "m2": 1.0}, {"m1": 0.75, "h1": 0.5, "h2": 0.5, "m2": 1.0})


def _unreached() -> list[CreditRow]:
    """A reward in the middle says nothing of what came after it: c has no return, which is not the return 0."""
    play = _Play("unreached")
    said = play.ask("a", [_user("guess")], _says("10"))
    said = play.ask("b", [*said, _user("lower")], _says("5"))
    play.ask("c", [*said, _user("higher")], _says("7"))
    return play.rows({"b": 0.0}, {"a": 0.0, "b": 0.0, "c": None})


def _user(text: str) -> Message:
    return Message("user", text)


def _says(text: str, *, reasoning: str | None = None) -> Message:
    return Message("assistant", text, reasoning=reasoning)


def _encode(messages: list[Message]) -> tuple[int, ...]:
    """The conversation as tokens: earlier reasoning is left out, as templates of thinking models do."""
    shown = [f"<{message.role}>{_body(message, thinks=False)}<end>" for message in messages]
    return tuple("".join([*shown, "<assistant>"]).encode())


def _body(message: Message, *, thinks: bool) -> str:
    thought = f"<think>{message.reasoning}</think>" if thinks and message.reasoning is not None else ""
    calls = "".join(f"<call>{call.name}{call.arguments}</call>" for call in message.tool_calls)
    return f"{thought}{message.content or ''}{calls}"


def _sampled(reply: Message) -> Sampled:
    ids = tuple(f"{_body(reply, thinks=True)}<end>".encode())
    return Sampled(ids, (-0.5,) * len(ids), (0,) * len(ids), "stop")
