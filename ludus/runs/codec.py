"""An episode as two pieces of bytes, and back: JSON for what a person reads, packed arrays for what is long.

Knows: the records of `ludus.types`.  Knows not: SQLite, files.
Invariants: `decode_episode(*encode_episode(e)) == e`, logprobs to the last bit, for every JSON-able `metadata`; a
`SessionReader` that is given all that a `SessionWriter` wrote has the session's record.

Messages and tools are stored once and referred to by index, so n turns hold n messages and not n². A session that
grows is written turn by turn, each with what is new since the turn before.
"""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ludus.runs.pieces import (
    Numbers,
    Table,
    message_from_json,
    message_to_json,
    node_from_json,
    node_to_json,
    turn_from_json,
    turn_to_json,
)
from ludus.types import Episode, Message, Node, Outcome, SessionRecord, Span, ToolSpec, Turn

FORMAT = 1
"""Version of this layout; a run folder of another one is refused by name."""


def encode_episode(episode: Episode) -> tuple[str, bytes]:
    """The JSON text and the packed numbers of an episode."""
    numbers = Numbers()
    messages: Table[Message] = Table()
    tools: Table[ToolSpec] = Table()
    turns = [
        turn_to_json(
            turn,
            numbers,
            asked=[messages.index(message) for message in turn.messages],
            reply=messages.index(turn.reply),
            tools=[tools.index(tool) for tool in turn.tools],
        )
        for turn in episode.session.turns
    ]
    sampled_of = {turn.id: turn.sampled.token_ids for turn in episode.session.turns}
    nodes = [node_to_json(node, numbers, sampled_of) for node in episode.session.nodes]
    body = {
        "format": FORMAT,
        "id": episode.id,
        "task_id": episode.task_id,
        "group_id": episode.group_id,
        "outcome": [episode.outcome.kind, episode.outcome.reason],
        "rewards": plain(episode.rewards),
        "reward": episode.reward,
        "metrics": plain(episode.metrics),
        "metadata": plain(episode.metadata),
        "started_at": episode.started_at,
        "finished_at": episode.finished_at,
        "is_eval": episode.is_eval,
        "has_returns": episode.has_returns,
        "left_out": {turn_id: list(places) for turn_id, places in episode.left_out.items()},
        # not asdict, which copies what is in a span, and some of that cannot be copied
        "spans": [{each.name: plain(getattr(span, each.name)) for each in fields(span)} for span in episode.spans],
        "session": {"id": episode.session.id, "nodes": nodes, "turns": turns},
        "messages": [message_to_json(message) for message in messages.items],
        "tools": [asdict(tool) for tool in tools.items],
        "num_ints": len(numbers.ints),
    }
    text = json.dumps(body, separators=(",", ":"))
    return text, numbers.to_bytes()


def decode_episode(text: str, packed: bytes) -> Episode:
    """The episode that `encode_episode` was given."""
    body = json.loads(text)
    numbers = Numbers.from_bytes(packed, body["num_ints"])
    messages = [message_from_json(message) for message in body["messages"]]
    tools = [ToolSpec(**tool) for tool in body["tools"]]
    turns = tuple(
        turn_from_json(turn, numbers, asked=[messages[idx] for idx in turn["messages"]], messages=messages, tools=tools)
        for turn in body["session"]["turns"]
    )
    sampled_of = {turn.id: turn.sampled.token_ids for turn in turns}
    nodes = tuple(node_from_json(node, numbers, sampled_of) for node in body["session"]["nodes"])
    return Episode(
        id=body["id"],
        task_id=body["task_id"],
        group_id=body["group_id"],
        session=SessionRecord(body["session"]["id"], nodes, turns),
        rewards=body["rewards"],
        outcome=Outcome(*body["outcome"]),
        reward=body["reward"] if "reward" in body else _sum(body["rewards"]),
        metrics=body["metrics"],
        metadata=body["metadata"],
        started_at=body["started_at"],
        finished_at=body["finished_at"],
        is_eval=body["is_eval"],
        left_out={turn_id: tuple(places) for turn_id, places in body.get("left_out", {}).items()},
        spans=tuple(Span(**span) for span in body.get("spans", ())),
        has_returns=body.get("has_returns", False),
    )


class SessionWriter:
    """Turns of one session as JSON objects, each with the nodes, messages and tools that are new in it."""

    def __init__(self) -> None:
        self._messages: Table[Message] = Table()
        self._tools: Table[ToolSpec] = Table()
        self._asked: dict[str, tuple[Message, ...]] = {}

    def write(self, nodes: Sequence[Node], turn: Turn) -> dict[str, Any]:
        """nodes: those that the session's graph has got since the turn before; the turn's own is among them."""
        numbers, messages, tools = Numbers(), self._messages, self._tools
        num_messages, num_tools = len(messages.items), len(tools.items)
        body = turn_to_json(
            turn,
            numbers,
            asked=self._asked_since(turn),
            reply=messages.index(turn.reply),
            tools=[tools.index(tool) for tool in turn.tools],
        )
        self._asked[turn.id] = turn.messages
        sampled_of = {turn.id: turn.sampled.token_ids}
        return {
            "turn": body,
            "nodes": [node_to_json(node, numbers, sampled_of) for node in nodes],
            "messages": [message_to_json(message) for message in messages.items[num_messages:]],
            "tools": [asdict(tool) for tool in tools.items[num_tools:]],
            "num_ints": len(numbers.ints),
            "numbers": b2a_base64(numbers.to_bytes(), newline=False).decode("ascii"),
        }

    def _asked_since(self, turn: Turn) -> list[Any]:
        """The turn whose messages this one's begin with, and the places of the others."""
        earlier = self._asked.get(turn.follows or "", ())
        is_longer = bool(earlier) and turn.messages[: len(earlier)] == earlier
        rest = turn.messages[len(earlier) :] if is_longer else turn.messages
        return [turn.follows if is_longer else None, [self._messages.index(message) for message in rest]]


class SessionReader:
    """The record of a session, from what a `SessionWriter` wrote of it, in the same order."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._messages: list[Message] = []
        self._tools: list[ToolSpec] = []
        self._nodes: list[Node] = []
        self._turns: dict[str, Turn] = {}

    def read(self, body: Mapping[str, Any]) -> None:
        numbers = Numbers.from_bytes(a2b_base64(body["numbers"]), body["num_ints"])
        self._messages += [message_from_json(message) for message in body["messages"]]
        self._tools += [ToolSpec(**tool) for tool in body["tools"]]
        earlier, rest = body["turn"]["messages"]
        asked = [] if earlier is None else list(self._turns[earlier].messages)
        asked += [self._messages[idx] for idx in rest]
        turn = turn_from_json(body["turn"], numbers, asked=asked, messages=self._messages, tools=self._tools)
        self._turns[turn.id] = turn
        sampled_of = {turn.id: turn.sampled.token_ids}
        self._nodes += [node_from_json(node, numbers, sampled_of) for node in body["nodes"]]

    def record(self) -> SessionRecord:
        """Of what was read so far."""
        return SessionRecord(self._session_id, tuple(self._nodes), tuple(self._turns.values()))


def _sum(rewards: Mapping[str, float]) -> float | None:
    """What stands for the episode's reward in a record that does not hold it."""
    return sum(rewards.values()) if rewards else None


def plain(value: object) -> object:
    """`value` in JSON's words: arrays become lists, what JSON does not know its repr, so that no episode is lost."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    to_list = getattr(value, "tolist", None)  # numpy and torch, which this floor does not import
    return plain(to_list()) if callable(to_list) else repr(value)
