"""An episode as bytes, and back; a session that grows turn by turn, each with what is new since the turn before.

Knows: the records of `ludus.types`, msgspec.  Knows not: SQLite, files.
Invariants: `decode_episode(encode_episode(e)) == e`, logprobs to the last bit, for every JSON-able `metadata`; a
`SessionReader` that is given all that a `SessionWriter` wrote has the session's record.

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
"""Version of this layout; a run folder of another one is refused by name."""
_NOTHING = Message("user")
_MOST_DEPTH = 200
"""As deep as the JSON that servers take; deeper values exhaust the stacks of who reads them."""
_MOST_BITS = 14_000
"""Some 4,200 digits: Python writes and reads no more than 4,300."""


class Piece(msgspec.Struct, array_like=True):
    """A turn with all that is new in it."""

    turn: Turn
    """Without its messages, reply and tools, whose places in the session's tables follow."""
    goes_on: str | None
    """The turn whose messages this one's begin with, and are not written again. None: all are written."""
    asked: list[int]
    reply: int
    tools: list[int]
    new_messages: list[Message]
    new_tools: list[ToolSpec]
    nodes: list[Node]


class _Stored(msgspec.Struct, array_like=True):
    episode: Episode
    """Without its spans and its session's insides."""
    spans: list[dict[str, Any]]
    """What an agent wrote into them may be anything."""
    pieces: list[Piece]
    nodes: list[Node]
    """Those that came after the last turn."""


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
    """The episode that `encode_episode` was given. Raises UserError for anything else."""
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
    """Turns of one session, each with the nodes, messages and tools that are new in it."""

    def __init__(self) -> None:
        self._messages: _Table[Message] = _Table()
        self._tools: _Table[ToolSpec] = _Table()
        self._asked: dict[str, tuple[Message, ...]] = {}

    def write(self, nodes: Sequence[Node], turn: Turn) -> Piece:
        """nodes: those that the session's graph has got since the turn before; the turn's own is among them."""
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
    """The record of a session, from what a `SessionWriter` wrote of it, in the same order."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._messages: list[Message] = []
        self._tools: list[ToolSpec] = []
        self._nodes: list[Node] = []
        self._turns: dict[str, Turn] = {}

    def fits(self, piece: Piece) -> bool:
        """It follows what was read so far: no piece between them is missing."""
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
        """Of what was read so far."""
        return SessionRecord(self._session_id, tuple(self._nodes), tuple(self._turns.values()))


class _Table(Generic[Item]):
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


def _without_tokens(node: Node, turn: Turn) -> Node:
    is_the_turns = node.turn_id == turn.id and node.token_ids == turn.sampled.token_ids
    return replace(node, token_ids=()) if is_the_turns else node


def to_bytes(value: msgspec.Struct) -> bytes:
    """MessagePack; what that cannot hold, halves of surrogate pairs and integers beyond 64 bits, as JSON in ASCII."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=plain)).encode("ascii")


class Decoder(Generic[KindT]):
    """Reads what `to_bytes` wrote of one kind.

    Made while its module is imported, not when bytes come: msgspec looks at a kind's fields when it meets it first, and
    two threads that make it do so at once end the process with a segmentation fault (msgspec 0.22).
    """

    def __init__(self, kind: type[KindT]) -> None:
        self._kind = kind
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def __call__(self, data: bytes) -> KindT:
        """What `to_bytes` was given. Raises ValueError for anything else."""
        try:
            if data.startswith(b"["):  # no list of MessagePack begins so
                return msgspec.convert(json.loads(data), self._kind)
            return self._decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"these bytes hold no {self._kind.__name__}: {error}") from None


def span_fields(span: Span) -> dict[str, Any]:
    """Not asdict, which copies what is in a span, and some of that cannot be copied."""
    return {each.name: plain(getattr(span, each.name)) for each in fields(span)}


def plain(value: object, depth: int = 0) -> Any:
    """`value` in JSON's words, so that no episode is lost: arrays become lists, what JSON does not know its repr,
    what is nested too deep an ellipsis, a number that Python does not write in digits its hexadecimal ones."""
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
    """The JSON-able value with every text in it changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_texts(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(inner, change) for inner in value]
    return value
