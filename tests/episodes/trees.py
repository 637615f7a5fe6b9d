"""Random sessions that meet everything an episode can do to its token graph, built on the graph itself.

Knows: messages, ids, the public face of SessionGraph.  Knows not: real templates, tokenizers, engines.

A made-up template stands for the real ones: one token opens each message by its role, words are one token each
(or a second token of the same spelling, as sampled text may be), thoughts and calls have their marks. The player
asks as a recorder does, in rounds of parallel requests that are all matched before any of them is added. Its
agents go on from any earlier turn, ask twice, take several choices, start sub-agents, edit what was said, drop
history; its turns are cut, aborted, empty, or equal to a sibling's.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace

from ludus.episodes.conversation import TurnMatch
from ludus.episodes.export import TurnCredit
from ludus.episodes.graph import SessionGraph
from ludus.episodes.ledger import MaskReason
from ludus.types import ChatRole, ForkReason, Message, Sampled, Sampling, SessionRecord, StopReason, ToolCall, Turn

_START, _END, _THINK, _CALL = 0, 1, 2, 3
_ROLES: dict[ChatRole, int] = {"system": 4, "user": 5, "assistant": 6, "tool": 7}
_WORDS = range(10, 14)  # few, so that different turns often hold the same tokens
_RESPELLED = 10  # added to a word's id: another token with the same text
_AGENTS = ("", "", "solver", "critic")
_REASONS: tuple[MaskReason, ...] = ("no_credit", "zero_advantage", "rejected", "failed", "small_group")
_SAMPLINGS = (
    *[Sampling()] * 20,
    Sampling(temperature=0.7),
    Sampling(temperature=0.0),
    Sampling(top_p=0.9),
    Sampling(repetition_penalty=1.1),
)


def random_session(rng: random.Random) -> tuple[SessionRecord, dict[str, TurnCredit]]:
    """A session of up to eight rounds with credit for each of its turns; the same state gives the same session."""
    player = _Player(rng)
    for _ in range(rng.randint(1, 8)):
        player.play_round()
    record = player.graph.snapshot()
    return record, {turn.id: _random_credit(rng) for turn in record.turns}


def _random_credit(rng: random.Random) -> TurnCredit:
    if rng.random() < 0.3:
        return TurnCredit(advantage=None, mask=rng.choice(_REASONS))
    return TurnCredit(advantage=rng.choice((0.0, rng.uniform(-2.0, 2.0))), mask=None)


class _Player:
    """Agents and recorder in one: makes requests, finds their prompts, invents the answers."""

    def __init__(self, rng: random.Random) -> None:
        self.graph = SessionGraph("session")
        self._rng = rng
        self._keeps_thoughts = rng.random() < 0.5
        self._turns: list[Turn] = []
        self._system = Message("system", self._random_text())
        self._ticks = itertools.count(1)

    def play_round(self) -> None:
        requests = [self._next_request() for _ in range(self._rng.choice((1, 1, 1, 2, 3)))]
        matched = [
            (messages, agent, self.graph.match(messages, agent), float(next(self._ticks)))
            for messages, agent in requests
        ]
        self._rng.shuffle(matched)
        for messages, agent, match, asked_at in matched:
            for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
                self._turns.append(self._answer(messages, agent, match, asked_at))

    def _next_request(self) -> tuple[tuple[Message, ...], str]:
        rng = self._rng
        if not self._turns or rng.random() < 0.15:
            return self._fresh(rng.choice(_AGENTS), self._random_text())
        turn = rng.choice((self._turns[-1], self._turns[-1], rng.choice(self._turns)))
        kind = rng.choice(("go_on",) * 5 + ("ask_again", "sub_agent", "edit", "drop", "compact"))
        if kind == "ask_again":
            return turn.messages, turn.agent
        if kind == "sub_agent" and turn.reply.tool_calls:
            return self._fresh(rng.choice(_AGENTS), _task(turn.reply.tool_calls[0]))
        history = [*turn.messages, turn.reply if rng.random() < 0.7 else replace(turn.reply, reasoning=None)]
        if kind == "edit":
            at = rng.randrange(len(history))
            history[at] = replace(history[at], content=self._random_text())
        elif kind == "drop":
            del history[rng.randrange(len(history))]
        elif kind == "compact":
            history = [self._system, Message("user", self._random_text())]
        return (*history, self._heard(turn)), turn.agent

    def _fresh(self, agent: str, task: str) -> tuple[tuple[Message, ...], str]:
        return (self._system, Message("user", task)), agent

    def _heard(self, turn: Turn) -> Message:
        if turn.reply.tool_calls and self._rng.random() < 0.8:
            return Message("tool", self._random_text(), tool_call_id=turn.reply.tool_calls[0].id)
        return Message("user", self._random_text())

    def _answer(self, messages: tuple[Message, ...], agent: str, match: TurnMatch, asked_at: float) -> Turn:
        fork = self._fork(messages, match)
        follows = match.follows
        if follows is not None and match.exact and fork is None:
            ended = follows.sampled.token_ids[-1:] == (_END,)
            rest = self._rendered(messages[len(follows.messages) + 1 :])
            prefix, prompt_ids = follows.id, (*self.graph.path_ids(follows.id), *(() if ended else (_END,)), *rest)
        else:
            prefix, prompt_ids = None, (_START, *self._rendered(messages))
        sampled = self._random_sample()
        turn_id = f"turn-{len(self._turns)}"
        return self.graph.add_turn(
            turn_id=turn_id,
            prompt_ids=prompt_ids,
            prefix=prefix,
            follows=None if follows is None else follows.id,
            fork=fork,
            messages=messages,
            reply=_read(sampled.token_ids, turn_id),
            sampled=sampled,
            sampling=self._rng.choice(_SAMPLINGS),
            agent=agent,
            started_at=asked_at,
            finished_at=float(next(self._ticks)),
        )

    def _fork(self, messages: Sequence[Message], match: TurnMatch) -> ForkReason | None:
        """Why the prompt is rendered anew. None: it goes on after `follows`, or there is no such turn."""
        if match.follows is None:
            return None
        if not match.exact:
            return "truncated" if len(messages) <= len(match.follows.messages) else "edit"
        if match.follows.reply.reasoning is not None and not self._keeps_thoughts:
            return "reasoning_stripped"
        return "retokenised" if self._rng.random() < 0.1 else None

    def _rendered(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The template: tokens of the messages, then what opens a reply."""
        token_ids: list[int] = []
        for message in messages:
            token_ids.append(_ROLES[message.role])
            if message.reasoning is not None and self._keeps_thoughts:
                token_ids += [_THINK, *_encode(message.reasoning), _THINK]
            token_ids += _encode(message.content or "")
            for call in message.tool_calls:
                token_ids += [_CALL, *_encode(_task(call))]
            token_ids.append(_END)
        return (*token_ids, _ROLES["assistant"])

    def _random_sample(self) -> Sampled:
        rng = self._rng
        token_ids, stop_reason = self._random_reply()
        if self._turns and rng.random() < 0.2:
            twin = rng.choice(self._turns[-3:]).sampled
            token_ids, stop_reason = list(twin.token_ids), twin.stop_reason
        version = rng.randrange(3)
        return Sampled(
            token_ids=tuple(token_ids),
            logprobs=tuple(-rng.random() for _ in token_ids),
            versions=tuple(sorted(version + rng.choice((0, 0, 1)) for _ in token_ids)),
            stop_reason=stop_reason,
        )

    def _random_reply(self) -> tuple[list[int], StopReason]:
        rng = self._rng
        token_ids = [word + rng.choice((0, 0, 0, _RESPELLED)) for word in rng.choices(_WORDS, k=rng.randrange(4))]
        if rng.random() < 0.3:
            token_ids = [_THINK, *rng.choices(_WORDS, k=rng.randrange(3)), _THINK, *token_ids]
        if rng.random() < 0.3:
            token_ids += [_CALL, *rng.choices(_WORDS, k=2)]
        stop_reason: StopReason = rng.choice(("stop",) * 6 + ("length", "abort"))
        if stop_reason == "stop":
            return [*token_ids, _END], "stop"
        return token_ids[: rng.randint(0, len(token_ids))], stop_reason

    def _random_text(self) -> str:
        return _decode(self._rng.choices(_WORDS, k=self._rng.randrange(1, 3)))


def _read(token_ids: Sequence[int], turn_id: str) -> Message:
    """The reply that sampled tokens spell; marks that were cut off are read as far as they go."""
    body = [token for token in token_ids if token != _END]
    reasoning: str | None = None
    if body[:1] == [_THINK]:
        close = body.index(_THINK, 1) if _THINK in body[1:] else len(body)
        reasoning, body = _decode(body[1:close]), body[close + 1 :]
    calls: tuple[ToolCall, ...] = ()
    if _CALL in body:
        at = body.index(_CALL)
        calls, body = (ToolCall(f"call-{turn_id}", "ask", json.dumps({"task": _decode(body[at + 1 :])})),), body[:at]
    return Message("assistant", _decode(body), reasoning, calls)


def _task(call: ToolCall) -> str:
    task = json.loads(call.arguments)["task"]
    assert isinstance(task, str), f"calls are made by _read, got {call}"
    return task


def _encode(text: str) -> list[int]:
    return [int(word.removeprefix("word")) for word in text.split()]


def _decode(token_ids: Sequence[int]) -> str:
    return " ".join(f"word{token - _RESPELLED if token > _WORDS[-1] else token}" for token in token_ids)
