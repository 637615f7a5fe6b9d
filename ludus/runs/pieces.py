"""What episodes and turns are written of: messages, tools, nodes and turns as JSON that points into packed numbers.

Knows: the records of `ludus.types`.  Knows not: what they are put together to.
The tokens of a sampled node and of its turn are the same tokens; they are stored once.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from ludus.types import Message, Node, Sampled, Sampling, ToolCall, ToolSpec, Turn

Item = TypeVar("Item")
Number = TypeVar("Number", int, float)

_INT = "q"  # 64 bit: vocabularies need 18 bits, versions and padding ids of foreign engines may need more
_FLOAT = "d"


class Numbers:
    """Two packed arrays that JSON points into: integers, and floats to the last bit."""

    def __init__(self) -> None:
        self.ints: array[int] = array(_INT)
        self.floats: array[float] = array(_FLOAT)

    @classmethod
    def from_bytes(cls, packed: bytes, num_ints: int) -> Numbers:
        """What `to_bytes` gave; `num_ints` of it are integers."""
        numbers = cls()
        split = num_ints * numbers.ints.itemsize
        numbers.ints.frombytes(packed[:split])
        numbers.floats.frombytes(packed[split:])
        if sys.byteorder == "big":
            numbers.ints.byteswap()
            numbers.floats.byteswap()
        return numbers

    def to_bytes(self) -> bytes:
        return _little_endian(self.ints) + _little_endian(self.floats)


class Table(Generic[Item]):
    """Items in the order of first sight; equal items once."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._by_identity: dict[int, tuple[int, Item]] = {}
        """The items are held, lest another one come to lie where one lay."""
        self._idx_by_text: dict[str, int] = {}

    def index(self, item: Item) -> int:
        # Recorders share message objects between turns; the repr is only needed for those that do not.
        known = self._by_identity.get(id(item))
        if known is not None:
            return known[0]
        idx = self._idx_by_text.setdefault(repr(item), len(self.items))
        if idx == len(self.items):
            self.items.append(item)
        self._by_identity[id(item)] = (idx, item)
        return idx


def message_to_json(message: Message) -> dict[str, Any]:
    fields = {"role": message.role, "content": message.content}
    optional = {
        "reasoning": message.reasoning,
        "tool_calls": [[call.id, call.name, call.arguments] for call in message.tool_calls] or None,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    return fields | {key: value for key, value in optional.items() if value is not None}


def message_from_json(body: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(*call) for call in body.get("tool_calls", ()))
    return Message(**{**body, "tool_calls": calls})


def node_to_json(node: Node, numbers: Numbers, sampled_of: Mapping[str, tuple[int, ...]]) -> list[Any]:
    if node.turn_id is not None and sampled_of.get(node.turn_id) == node.token_ids:
        return [node.parent, node.turn_id]
    return [node.parent, node.turn_id, *_append(numbers.ints, node.token_ids)]


def node_from_json(body: Sequence[Any], numbers: Numbers, sampled_of: Mapping[str, tuple[int, ...]]) -> Node:
    if len(body) == 2:
        return Node(body[0], sampled_of[body[1]], body[1])
    return Node(body[0], tuple(numbers.ints[body[2] : body[3]]), body[1])


def turn_to_json(
    turn: Turn, numbers: Numbers, *, asked: Sequence[Any], reply: int, tools: Sequence[int]
) -> dict[str, Any]:
    """asked: the messages, in whatever way they can be found again.  reply, tools: their places in tables."""
    body = {
        "id": turn.id,
        "node": turn.node,
        "prefix": turn.prefix,
        "follows": turn.follows,
        "fork": turn.fork,
        "messages": asked,
        "reply": reply,
        "sampled": _sampled_to_json(turn.sampled, numbers),
        "sampling": _changed_sampling(turn.sampling),
        "agent": turn.agent,
        "started_at": turn.started_at,
        "finished_at": turn.finished_at,
        "tools": tools,
        "undecoded": turn.undecoded,
    }
    return body if turn.abort_cause is None else {**body, "abort_cause": turn.abort_cause}


def turn_from_json(
    body: Mapping[str, Any],
    numbers: Numbers,
    *,
    asked: Sequence[Message],
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
) -> Turn:
    """asked: the turn's messages.  messages, tools: the tables that its places point into."""
    return Turn(
        **{
            **body,
            "messages": tuple(asked),
            "reply": messages[body["reply"]],
            "sampled": _sampled_from_json(body["sampled"], numbers),
            "sampling": Sampling(**{name: _frozen(value) for name, value in body["sampling"].items()}),
            "tools": tuple(tools[idx] for idx in body["tools"]),
            "undecoded": tuple(body.get("undecoded", ())),
        }
    )


def _sampled_to_json(sampled: Sampled, numbers: Numbers) -> dict[str, Any]:
    body: dict[str, Any] = {
        "token_ids": _append(numbers.ints, sampled.token_ids),
        "versions": _append(numbers.ints, sampled.versions),
        "logprobs": _append(numbers.floats, sampled.logprobs),
        "stop_reason": sampled.stop_reason,
        "seed": sampled.seed,
        "stop_string": sampled.stop_string,
        "num_cached_tokens": sampled.num_cached_tokens,
    }
    if sampled.top_logprobs:
        body["top_counts"] = [len(top) for top in sampled.top_logprobs]
        body["top_ids"] = _append(numbers.ints, [token for top in sampled.top_logprobs for token, _ in top])
        body["top_logprobs"] = _append(numbers.floats, [logprob for top in sampled.top_logprobs for _, logprob in top])
    if sampled.kept_ids:
        body["kept_counts"] = [None if kept is None else len(kept) for kept in sampled.kept_ids]
        body["kept_ids"] = _append(numbers.ints, [token for kept in sampled.kept_ids for token in kept or ()])
    return body


def _sampled_from_json(body: Mapping[str, Any], numbers: Numbers) -> Sampled:
    top: list[tuple[tuple[int, float], ...]] = []
    if "top_counts" in body:
        pairs = zip(_cut(numbers.ints, body["top_ids"]), _cut(numbers.floats, body["top_logprobs"]), strict=True)
        top = [tuple(next(pairs) for _ in range(count)) for count in body["top_counts"]]
    kept_ids: list[tuple[int, ...] | None] = []
    if "kept_counts" in body:
        ids = iter(_cut(numbers.ints, body["kept_ids"]))
        kept_ids = [None if count is None else tuple(islice(ids, count)) for count in body["kept_counts"]]
    return Sampled(
        token_ids=_cut(numbers.ints, body["token_ids"]),
        logprobs=_cut(numbers.floats, body["logprobs"]),
        versions=_cut(numbers.ints, body["versions"]),
        stop_reason=body["stop_reason"],
        seed=body["seed"],
        stop_string=body["stop_string"],
        top_logprobs=tuple(top),
        num_cached_tokens=body["num_cached_tokens"],
        kept_ids=tuple(kept_ids),
    )


def _frozen(value: Any) -> Any:
    """JSON's arrays as the tuples they were."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _changed_sampling(sampling: Sampling) -> dict[str, Any]:
    return {
        name: getattr(sampling, name)
        for name in Sampling.__dataclass_fields__
        if getattr(sampling, name) != getattr(_DEFAULT_SAMPLING, name)
    }


_DEFAULT_SAMPLING = Sampling()


def _append(numbers: array[Number], values: Iterable[Number]) -> list[int]:
    start = len(numbers)
    numbers.extend(values)
    return [start, len(numbers)]


def _cut(numbers: array[Number], span: Sequence[int]) -> tuple[Number, ...]:
    return tuple(numbers[span[0] : span[1]])


def _little_endian(numbers: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()
