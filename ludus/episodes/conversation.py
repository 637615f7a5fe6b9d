"""Decides which earlier turn a request follows, from messages alone.

Knows: messages, replies, agents' tags.  Knows not: token ids, text.

Messages are compared without reasoning, without space around the content and without the ids of tool calls; arguments
of calls are compared as JSON values. A request follows, in this order,

    the turn whose reply is furthest down the request's messages:
        after exactly the messages that the turn answered              (exact)
        in other words, at the place of that turn's reply              (an edited reply)
        in the same words, after other messages                        (history edited or dropped before it)
    the turn that its earlier request with the same messages followed  (a second sample follows the same turn)
    the turn whose open tool call this sub-agent serves
    the last turn that everything the same agent does has in common: its last turn, or, if it makes several calls at
    once, the turn before them

Of several that fit equally well, one of the same agent comes first, then one whose reply is equal in every field, then
the one with the fewest followers, then the one that was asked last. A turn counts from when it was asked, so nothing
depends on which of several concurrent turns was answered first.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ludus.text.prefix_memo import PrefixMemo
from ludus.types import Message, ToolCall, Turn

_Key = tuple[object, ...]
_START = 0  # number of the empty conversation
_MIN_SHOWN_CHARS = 4  # shorter arguments ("7", "yes") occur in messages by chance


@dataclass(frozen=True, slots=True)
class TurnMatch:
    """Where a request belongs in its session."""

    follows: Turn | None
    """The turn that the request follows. None: it is a root of credit."""
    exact: bool
    """The messages begin with those of `follows` and its reply."""


class MessageNode(NamedTuple):
    """A message in the tree of conversations."""

    message: Message
    """The same object for all equal messages of the session."""
    key: _Key
    at: int
    """Number of the conversation that ends with this message."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A turn from the moment it was asked."""

    agent: str
    follows: str | None
    serves: bool
    """It was asked while a tool call of the turn that it follows was open."""
    ordinal: int


class Conversations:
    """The conversations of a session as a tree of messages. Not thread-safe."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._asked: dict[str, _Asked] = {}
        """By turn id, answered or not."""
        self._num_asked = 0
        self._followed_at: dict[tuple[int, str], str | None] = {}
        """By conversation and agent: the turn that its last request with it followed."""
        self._steps: dict[tuple[int, _Key], int] = {}  # conversation and next message -> conversation
        self._asked_at: dict[int, list[Turn]] = {}  # by the conversation of the request
        self._ended_at: dict[int, list[Turn]] = {}  # by that conversation with the reply
        self._replied: dict[_Key, list[Turn]] = {}  # by the reply
        self._open_at: dict[int, list[str]] = {}  # by conversation with reply, until a later turn continues it
        self._answered: set[str] = set()  # turns whose conversation a later turn continues
        self._lengths = [0]  # of each conversation, in messages
        self._num_followers: Counter[str] = Counter()
        self._interned: dict[Message, Message] = {}
        self._entered: PrefixMemo[Message, MessageNode] = PrefixMemo()

    def intern(self, message: Message) -> Message:
        """The one object that represents all equal messages of the session."""
        return self._interned.setdefault(message, message)

    def enter(self, messages: Sequence[Message]) -> list[MessageNode]:
        """Add a conversation to the tree; returns its path."""
        steps = self._entered.known(messages)
        at = steps[-1].at if steps else _START
        for message in messages[len(steps) :]:
            key = message_key(message)
            at = self._step(at, key)
            steps.append(MessageNode(self.intern(message), key, at))
        self._entered.remember(messages, steps)
        return steps

    def begin(self, turn_id: str, asked: Sequence[MessageNode], agent: str, follows: str | None) -> None:
        """A turn is asked; later `add` or `drop` is called for it. asked: what `enter` returned for its messages."""
        self._answer(asked)
        self._followed_at[asked[-1].at if asked else _START, agent] = follows
        serves = follows is not None and follows not in self._answered and bool(self._turns[follows].reply.tool_calls)
        self._asked[turn_id] = _Asked(agent, follows, serves, self._num_asked)
        self._num_asked += 1
        if follows is not None:
            self._num_followers[follows] += 1

    def drop(self, turn_id: str) -> None:
        """The turn has no answer."""
        follows = self._asked.pop(turn_id).follows
        if follows is not None:
            self._num_followers[follows] -= 1

    def break_off(self, turn: Turn) -> None:
        """Replace an answered turn whose answer reached no client."""
        self._turns[turn.id] = turn

    def add(self, turn: Turn, asked: Sequence[MessageNode]) -> None:
        """A turn is answered. asked: what `enter` returned for its messages."""
        if turn.id not in self._asked:
            self.begin(turn.id, asked, turn.agent, turn.follows)
        at = asked[-1].at if asked else _START
        reply = message_key(turn.reply)
        self._asked_at.setdefault(at, []).append(turn)
        end = self._step(at, reply)
        self._ended_at.setdefault(end, []).append(turn)
        self._open_at.setdefault(end, []).append(turn.id)
        self._replied.setdefault(reply, []).append(turn)
        self._turns[turn.id] = turn

    def match(self, messages: Sequence[Message], agent: str) -> TurnMatch:
        """The turn that a request of `agent` with these messages follows."""
        entered = self._entered.known(messages)
        keys = [step.key for step in entered]
        keys += [message_key(message) for message in messages[len(entered) :]]
        walked = self._walk([step.at for step in entered], keys)
        for at in reversed(range(len(messages))):
            if messages[at].role != "assistant":
                continue
            ended = self._ended_at.get(walked[at + 1]) if at + 1 < len(walked) else None
            if ended:
                return TurnMatch(self._best(ended, messages[at], agent), exact=True)
            asked = self._asked_at.get(walked[at]) if at < len(walked) else None
            found = asked or self._replied.get(keys[at])
            if found:
                return TurnMatch(self._best(found, messages[at], agent), exact=False)
        if len(walked) == len(messages) + 1 and (walked[-1], agent) in self._followed_at:
            follows = self._followed_at[walked[-1], agent]
            if follows not in self._answered:
                return TurnMatch(None if follows is None else self._turns[follows], exact=False)
        return TurnMatch(self._caller(messages, agent) or self._joined(agent), exact=False)

    def _caller(self, messages: Sequence[Message], agent: str) -> Turn | None:
        """The last-asked turn with an open tool call that a new conversation of this agent may serve.

        A call whose arguments occur in the messages comes first, at most once for each call. Without such a sign the
        caller must not descend from a turn of the same agent (an agent that starts afresh with every request looks just
        the same), and must be the only thing that its own agent is doing.
        """
        open_turns = [turn for turn in self._turns.values() if turn.reply.tool_calls and turn.id not in self._answered]
        open_turns.sort(key=lambda turn: -self._asked[turn.id].ordinal)
        for turn in open_turns:
            has_room = self._num_followers[turn.id] < len(turn.reply.tool_calls)
            if has_room and _task_shows(turn.reply.tool_calls, messages):
                return turn
        strangers = (turn for turn in open_turns if all(each.agent != agent for each in self._line(turn.id)))
        return next((turn for turn in strangers if self._joined(turn.agent) is turn), None)

    def _joined(self, agent: str) -> Turn | None:
        """The last turn that everything the agent does has in common, leaving out turns that served a tool call which
        has its answer.

        Aborted turns are ignored; turns that are not answered yet count.
        """
        done = [turn for turn in self._turns.values() if turn.agent == agent and turn.sampled.stop_reason != "abort"]
        begun = [each for turn_id, each in self._asked.items() if each.agent == agent and turn_id not in self._turns]
        above: set[str] = set()
        for at in (*(turn.follows for turn in done), *(each.follows for each in begun)):
            while at is not None and at not in above:
                above.add(at)
                at = self._turns[at].follows
        ends = [turn.id for turn in done if turn.id not in above and not self._is_over(turn)]
        lines = [[turn.id for turn in self._line(end)] for end in (*ends, *(each.follows for each in begun))]
        common = set(lines[0]).intersection(*lines[1:]) if lines else set()
        return next((self._turns[turn_id] for turn_id in lines[0] if turn_id in common), None) if lines else None

    def _is_over(self, turn: Turn) -> bool:
        """Whether it, or a turn before it, served a tool call that has its answer."""
        return any(self._asked[each.id].serves and each.follows in self._answered for each in self._line(turn.id))

    def _line(self, turn_id: str | None) -> Iterator[Turn]:
        """The turn, the turn that it follows, and so on."""
        while turn_id is not None:
            yield self._turns[turn_id]
            turn_id = self._turns[turn_id].follows

    def _walk(self, entered: Sequence[int], keys: Sequence[_Key]) -> list[int]:
        """The conversations in the tree that messages with these keys pass: before the first message, after it, and so
        on.

        entered: the first of these, if they are known already.
        """
        walked = [_START, *entered]
        for key in keys[len(entered) :]:
            at = self._steps.get((walked[-1], key))
            if at is None:
                break
            walked.append(at)
        return walked

    def _step(self, at: int, key: _Key) -> int:
        known = self._steps.setdefault((at, key), len(self._lengths))
        if known == len(self._lengths):
            self._lengths.append(self._lengths[at] + 1)
        return known

    def _answer(self, asked: Sequence[MessageNode]) -> None:
        """Mark the turns whose conversation this one continues."""
        for at in list(self._open_at):
            length = self._lengths[at]
            if length <= len(asked) and asked[length - 1].at == at:
                self._answered.update(self._open_at.pop(at))

    def _best(self, turns: Sequence[Turn], echoed: Message, agent: str) -> Turn:
        """The best of several turns with the same reply; a whole answer comes before an aborted one."""

        def rank(turn: Turn) -> tuple[bool, bool, bool, int, int]:
            is_whole, followers = turn.sampled.stop_reason != "abort", self._num_followers[turn.id]
            return turn.agent == agent, turn.reply == echoed, is_whole, -followers, self._asked[turn.id].ordinal

        return max((self._turns[turn.id] for turn in turns), key=rank)


def message_key(message: Message) -> _Key:
    """A key that is equal for messages that say the same, in whichever form a client sends them back."""
    return message.role, (message.content or "").strip(), tuple(map(call_key, message.tool_calls)), message.name


def call_key(call: ToolCall) -> _Key:
    """A key that is equal for calls of one tool with the same arguments."""
    return call.name, json.dumps(_loaded(call.arguments), sort_keys=True)


def _loaded(arguments: str) -> Any:
    """The arguments as a JSON value; as text if they are not JSON."""
    try:
        return json.loads(arguments, parse_float=_number)
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> float:
    """Whole numbers as int: clients in other languages send 6.0 back as 6."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _task_shows(calls: Iterable[ToolCall], messages: Sequence[Message]) -> bool:
    """Whether a text among the calls' arguments, such as a task for a sub-agent, occurs in the messages."""
    texts = [text for call in calls for text in _texts(_loaded(call.arguments))]
    return any(text in (message.content or "") for text in texts for message in messages)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if len(value.strip()) >= _MIN_SHOWN_CHARS:
            yield value.strip()
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
