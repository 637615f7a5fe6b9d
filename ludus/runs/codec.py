"""Encodes episodes to bytes and back; also a growing session, turn by turn, each with only what is new in it.

Knows: the records of `ludus.types`, msgspec.  Knows not: SQLite, files.
Invariants: `decode_episode(encode_episode(e)) == e`, logprobs to the last bit, for every JSON-able `metadata`; a
`SessionReader` that reads everything a `SessionWriter` wrote has the session's record.

Messages and tools are stored once, so n turns hold n messages and not n²; the tokens of a sampled node are its turn's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import msgspec

from ludus.errors import UserError
from ludus.types import Episode, Message, Node, SessionRecord, Span, ToolSpec, Turn

Item = TypeVar("Item")
KindT = TypeVar("KindT")

FORMAT = 4
"""Version of this format; a run folder with another version is refused."""
_NOTHING = Message("user")
_MOST_DEPTH = 200
"""Same limit as for JSON that servers accept; deeper values exhaust the stacks of readers."""
_MOST_BITS = 14_000
"""About 4,200 digits: Python converts no more than 4,300."""


class Piece(msgspec.Struct, array_like=True):
    """A turn with everything that is new in it."""

    turn: Turn
    """The turn without its messages, reply and tools; their indices in the session's tables follow."""
    goes_on: str | None
    """The turn whose messages this one's begin with; those are not written again. None: all are written."""
    asked: list[int]
    reply: int
    tools: list[int]
    new_messages: list[Message]
    new_tools: list[ToolSpec]
    nodes: list[Node]


class _Stored(msgspec.Struct, array_like=True):
    episode: Episode
    """The episode without its spans and the content of its session."""
    spans: list[dict[str, Any]]
    """Separate, because an agent may write anything into them."""
    pieces: list[Piece]
    nodes: list[Node]
    """Nodes after the last turn."""


def encode_episode(episode: Episode) -> bytes:
    session, writer, pieces, done = episode.session, SessionWriter(), [], 0
    for turn in session.turns:
        end = max(done, turn.node + 1)
        pieces.append(writer.write(session.nodes[done:end], turn))
        done = end
    bare = replace(
        episode,
        session=SessionRecord(session.id, (), ()),
        spans=(),
        metrics=plain(episode.metrics),
        metadata=plain(episode.metadata),
    )
    return to_bytes(_Stored(bare, [span_fields(span) for span in episode.spans], pieces, list(session.nodes[done:])))


def decode_episode(data: bytes) -> Episode:
    """The inverse of `encode_episode`. Raises UserError for any other data."""
    try:
        stored = _decode(data)
        reader = SessionReader(stored.episode.session.id)
        for piece in stored.pieces:
            reader.read(piece)
        reader.add(stored.nodes)
        return replace(stored.episode, session=reader.record(), spans=tuple(Span(**span) for span in stored.spans))
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"a record of an episode is none that Ludus writes: {error}") from None


class SessionWriter:
    """Writes the turns of one session, each with the nodes, messages and tools that are new in it."""

    def __init__(self) -> None:
        self._messages: _Table[Message] = _Table()
        self._tools: _Table[ToolSpec] = _Table()
        self._asked: dict[str, tuple[Message, ...]] = {}

    def write(self, nodes: Sequence[Node], turn: Turn) -> Piece:
        """nodes: those added to the session's graph since the previous turn, including the turn's own."""
        messages, tools = self._messages, self._tools
        num_messages, num_tools = len(messages.items), len(tools.items)
        earlier = self._asked.get(turn.follows or "", ())
        goes_on = bool(earlier) and turn.messages[: len(earlier)] == earlier
        self._asked[turn.id] = turn.messages
        return Piece(
            turn=replace(turn, messages=(), reply=_NOTHING, tools=()),
            goes_on=turn.follows if goes_on else None,
            asked=[messages.index(each) for each in turn.messages[len(earlier) if goes_on else 0 :]],
            reply=messages.index(turn.reply),
            tools=[tools.index(tool) for tool in turn.tools],
            new_messages=messages.items[num_messages:],
            new_tools=tools.items[num_tools:],
            nodes=[_without_tokens(node, turn) for node in nodes],
        )


class SessionReader:
    """Rebuilds a session's record from the output of a `SessionWriter`, in the same order."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._messages: list[Message] = []
        self._tools: list[ToolSpec] = []
        self._nodes: list[Node] = []
        self._turns: dict[str, Turn] = {}

    def fits(self, piece: Piece) -> bool:
        """Whether it directly follows what was read so far, without a missing piece."""
        place = piece.turn.node - len(self._nodes)
        is_next = 0 <= place < len(piece.nodes) and piece.nodes[place].turn_id == piece.turn.id
        return is_next and (piece.goes_on is None or piece.goes_on in self._turns)

    def read(self, piece: Piece) -> None:
        self._messages += piece.new_messages
        self._tools += piece.new_tools
        earlier = () if piece.goes_on is None else self._turns[piece.goes_on].messages
        turn = replace(
            piece.turn,
            messages=(*earlier, *(self._messages[idx] for idx in piece.asked)),
            reply=self._messages[piece.reply],
            tools=tuple(self._tools[idx] for idx in piece.tools),
        )
        self._turns[turn.id] = turn
        self.add(piece.nodes)

    def add(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            turn = None if node.token_ids else self._turns.get(node.turn_id or "")
            self._nodes.append(node if turn is None else replace(node, token_ids=turn.sampled.token_ids))

    def record(self) -> SessionRecord:
        """The record of what was read so far."""
        return SessionRecord(self._session_id, tuple(self._nodes), tuple(self._turns.values()))


class _Table(Generic[Item]):
    """Distinct items, in order of first appearance."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._by_identity: dict[int, tuple[int, Item]] = {}
        """By id(). The items are kept alive, so that no id is reused."""
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


def _without_tokens(node: Node, turn: Turn) -> Node:
    is_the_turns = node.turn_id == turn.id and node.token_ids == turn.sampled.token_ids
    return replace(node, token_ids=()) if is_the_turns else node


def to_bytes(value: msgspec.Struct) -> bytes:
    """As MessagePack, or as ASCII JSON if MessagePack cannot hold it (lone surrogates, integers beyond 64 bits)."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=plain)).encode("ascii")


class Decoder(Generic[KindT]):
    """Reads one kind of values written by `to_bytes`.

    Create it at import time, not when bytes arrive: msgspec inspects a kind's fields on first use, and if two threads
    do so at once, the process crashes with a segmentation fault (msgspec 0.22).
    """

    def __init__(self, kind: type[KindT]) -> None:
        self._kind = kind
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def __call__(self, data: bytes) -> KindT:
        """The inverse of `to_bytes`. Raises ValueError for any other data."""
        try:
            if data.startswith(b"["):  # no list of MessagePack begins so
                return msgspec.convert(json.loads(data), self._kind)
            return self._decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"these bytes hold no {self._kind.__name__}: {error}") from None


def span_fields(span: Span) -> dict[str, Any]:
    """The span's fields. asdict would copy their content, some of which cannot be copied."""
    return {each.name: plain(getattr(span, each.name)) for each in fields(span)}


def plain(value: object, depth: int = 0) -> Any:
    """`value` as JSON, whatever it is, so that no episode is lost: arrays become lists, unknown types their repr,
    values that are nested too deeply an ellipsis, and integers too long for decimal digits hexadecimal."""
    if type(value) is int and value.bit_length() > _MOST_BITS:
        return hex(value)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth > _MOST_DEPTH:
        return "…"
    if isinstance(value, str | int | float):  # of a class of its own, such as numpy's float64
        return json.loads(json.dumps(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    to_list = getattr(value, "tolist", None)  # numpy and torch, which this layer does not import
    return plain(to_list()) if callable(to_list) else repr(value)


_encode = msgspec.msgpack.Encoder(enc_hook=plain).encode
_decode = Decoder(_Stored)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The JSON-able value with `change` applied to every text in it, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_texts(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(inner, change) for inner in value]
    return value
