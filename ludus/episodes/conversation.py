"""Which earlier turn a request follows, decided on messages alone.

Knows: messages, replies, agents' tags.  Knows not: token ids, text.

Messages are compared without reasoning, without space around the content and without the ids of tool calls, the
arguments of calls as JSON values. The turn is, in this order,

    the one whose reply stands furthest down the request's messages:
        after exactly the messages that it answered                    (exact)
        in other words, but where that turn's reply belongs            (an edited reply)
        in the same words, after other messages                        (history edited or dropped before it)
    what the same messages followed when they were asked before        (a second sample is no consequence)
    the one whose open tool call this sub-agent serves
    the last one of the same agent

Where several fit equally well, one of the same agent wins, then one whose reply is equal in every field, then the
least followed, then the latest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ludus.text.prefix_memo import PrefixMemo
from ludus.types import Message, ToolCall, Turn

_Key = tuple[object, ...]
_START = 0  # the conversation before its first message
_MIN_SHOWN_CHARS = 4  # shorter arguments ("7", "yes") turn up in messages by chance


@dataclass(frozen=True, slots=True)
class TurnMatch:
    """Where a request belongs in its session."""

    follows: Turn | None
    """The turn whose consequence the request is. None: a root of credit."""
    exact: bool
    """The messages begin with those of `follows` and its reply."""


class MessageNode(NamedTuple):
    """One message of a conversation that was entered."""

    message: Message
    """One object for all equal messages of the session."""
    key: _Key
    at: int
    """The conversation up to and with the message."""


class Conversations:
    """The conversations of a session as a tree of messages. Not thread-safe."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._steps: dict[tuple[int, _Key], int] = {}
        self._asked_at: dict[int, list[Turn]] = {}  # by the conversation that was sent
        self._ended_at: dict[int, list[Turn]] = {}  # by that conversation with the reply
        self._replied: dict[_Key, list[Turn]] = {}
        self._open_at: dict[int, list[str]] = {}  # by that too, as long as no later turn goes on with it
        self._answered: set[str] = set()  # turns whose conversation a later turn goes on with
        self._lengths = [0]  # of each conversation, in messages
        self._num_followers: dict[str, int] = {}
        self._interned: dict[Message, Message] = {}
        self._entered: PrefixMemo[Message, MessageNode] = PrefixMemo()

    def intern(self, message: Message) -> Message:
        """The one object that stands for all equal messages of the session."""
        return self._interned.setdefault(message, message)

    def enter(self, messages: Sequence[Message]) -> list[MessageNode]:
        """The way of a conversation through the tree, which has it from now on."""
        steps = self._entered.known(messages)
        at = steps[-1].at if steps else _START
        for message in messages[len(steps) :]:
            key = message_key(message)
            at = self._step(at, key)
            steps.append(MessageNode(self.intern(message), key, at))
        self._entered.remember(messages, steps)
        return steps

    def add(self, turn: Turn, asked: Sequence[MessageNode]) -> None:
        """asked: what `enter` made of the turn's messages."""
        self._answer(asked)
        at = asked[-1].at if asked else _START
        reply = message_key(turn.reply)
        self._asked_at.setdefault(at, []).append(turn)
        end = self._step(at, reply)
        self._ended_at.setdefault(end, []).append(turn)
        self._open_at.setdefault(end, []).append(turn.id)
        self._replied.setdefault(reply, []).append(turn)
        self._turns[turn.id] = turn
        if turn.follows is not None:
            self._num_followers[turn.follows] = self._num_followers.get(turn.follows, 0) + 1

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
        asked = self._asked_at.get(walked[-1]) if len(walked) == len(messages) + 1 else None
        if asked and asked[-1].follows not in self._answered:
            follows = asked[-1].follows
            return TurnMatch(None if follows is None else self._turns[follows], exact=False)
        return TurnMatch(self._caller(messages, agent) or self._latest(agent), exact=False)

    def _caller(self, messages: Sequence[Message], agent: str) -> Turn | None:
        """The latest turn with an open tool call that a new conversation of this agent may serve.

        A call whose task shows in the messages comes first, once for each call. Without such a sign the caller must
        descend from no turn of the same agent: an agent that starts afresh with every request looks the same.
        """
        open_turns = [turn for turn in self._turns.values() if turn.reply.tool_calls and turn.id not in self._answered]
        for turn in reversed(open_turns):
            has_room = self._num_followers.get(turn.id, 0) < len(turn.reply.tool_calls)
            if has_room and _task_shows(turn.reply.tool_calls, messages):
                return turn
        return next((turn for turn in reversed(open_turns) if agent not in self._agents_above(turn)), None)

    def _agents_above(self, turn: Turn | None) -> Iterator[str]:
        while turn is not None:
            yield turn.agent
            turn = None if turn.follows is None else self._turns[turn.follows]

    def _latest(self, agent: str) -> Turn | None:
        return next((turn for turn in reversed(self._turns.values()) if turn.agent == agent), None)

    def _walk(self, entered: Sequence[int], keys: Sequence[_Key]) -> list[int]:
        """The known conversations that messages with these keys go through: before the first, after it, and so on.

        entered: those after the first messages, as far as they were entered together.
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
        """Notes the turns whose conversation is the beginning of this one."""
        for at in list(self._open_at):
            length = self._lengths[at]
            if length <= len(asked) and asked[length - 1].at == at:
                self._answered.update(self._open_at.pop(at))

    def _best(self, turns: Sequence[Turn], echoed: Message, agent: str) -> Turn:
        def rank(index: int) -> tuple[bool, bool, int, int]:
            turn = turns[index]
            return turn.agent == agent, turn.reply == echoed, -self._num_followers.get(turn.id, 0), index

        return turns[max(range(len(turns)), key=rank)]


def message_key(message: Message) -> _Key:
    """What a message says in whatever form a client sends it again: equal for equal ones."""
    calls = tuple([(call.name, _canonical(call.arguments)) for call in message.tool_calls])
    return message.role, (message.content or "").strip(), calls, message.name


def _canonical(arguments: str) -> str:
    return json.dumps(_loaded(arguments), sort_keys=True)


def _loaded(arguments: str) -> Any:
    """The arguments as a JSON value; as the text that they are if they are none."""
    try:
        return json.loads(arguments, parse_float=_number)
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> float:
    """Equal numbers as equal objects: clients in other languages send 6.0 back as 6."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _task_shows(calls: Iterable[ToolCall], messages: Sequence[Message]) -> bool:
    """A text among the calls' arguments stands in the messages: what a caller told its sub-agent to do."""
    texts = [text for call in calls for text in _texts(_loaded(call.arguments))]
    return any(text in (message.content or "") for text in texts for message in messages)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if len(value.strip()) >= _MIN_SHOWN_CHARS:
            yield value.strip()
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
