"""A reply as a sequence of blocks, for protocols in which thinking, text and each tool call are separate items.

Knows: deltas and blocks.  Knows not: the format of any protocol.
Invariant: streaming and `whole_blocks` make the same blocks from the same deltas, except around a tool call that turns
out to be malformed: `whole_blocks` joins the text before and after it.

A block stays open until a delta of another kind, or of another call, comes. A reply without text and calls gets one
block of empty text, so that it appears in the history that the client sends back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from ludus.episodes.reply import replay
from ludus.text.parsers.base import ContentDelta, Delta, ReasoningDelta, ToolCallBroken, ToolCallDelta
from ludus.types import Message

BlockKind = Literal["reasoning", "text", "call"]


@dataclass(frozen=True, slots=True)
class Block:
    """One part of a reply."""

    kind: BlockKind
    text: str = ""
    """The text; for a tool call, its arguments."""
    call_id: str = ""
    """Set for a tool call, like `name`."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """A block begins, without text."""

    idx: int
    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    """More text of the open block."""

    idx: int
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The open block is complete; or it was a malformed tool call, which is no part of the reply."""

    idx: int
    block: Block
    is_broken: bool = False


BlockEvent = Opened | Grown | Closed


class BlockStream:
    """Turns the deltas of one reply into steps: open, grow, close, one block after the other."""

    def __init__(self) -> None:
        self.closed: list[tuple[int, Block]] = []
        """The reply's complete blocks so far, each with its index in the stream."""
        self._open: Block | None = None
        self._call_idx: int | None = None
        self._texts: list[str] = []
        self._num_opened = 0
        self._has_answer = False

    @property
    def has_begun(self) -> bool:
        return self._num_opened > 0

    def feed(self, delta: Delta) -> list[BlockEvent]:
        if isinstance(delta, ToolCallBroken):
            return self._close(is_broken=True) if self._call_idx == delta.index else []
        if isinstance(delta, ToolCallDelta):
            begun = Block("call", call_id=delta.id or "", name=delta.name or "")
            steps = [] if self._call_idx == delta.index else self._begin(begun, delta.index)
            return steps + self._grow(delta.arguments)
        if isinstance(delta, ContentDelta) and not delta.text:
            return []
        kind: BlockKind = "reasoning" if isinstance(delta, ReasoningDelta) else "text"
        steps = [] if self._open is not None and self._open.kind == kind else self._begin(Block(kind))
        return steps + self._grow(delta.text)

    def finish(self) -> list[BlockEvent]:
        """The events that end the reply."""
        steps = self._close()
        return steps if self._has_answer else [*steps, *self._begin(Block("text")), *self._close()]

    def _begin(self, block: Block, call_idx: int | None = None) -> list[BlockEvent]:
        steps = self._close()
        self._open, self._call_idx = block, call_idx
        self._num_opened += 1
        self._has_answer = self._has_answer or block.kind != "reasoning"
        return [*steps, Opened(self._num_opened - 1, block)]

    def _grow(self, text: str) -> list[BlockEvent]:
        if not text:
            return []
        self._texts.append(text)
        return [Grown(self._num_opened - 1, text)]

    def _close(self, *, is_broken: bool = False) -> list[BlockEvent]:
        if self._open is None:
            return []
        idx, block = self._num_opened - 1, replace(self._open, text="".join(self._texts))
        self._open, self._call_idx, self._texts = None, None, []
        if is_broken:
            self._has_answer = any(kept.kind != "reasoning" for _, kept in self.closed)
        else:
            self.closed.append((idx, block))
        return [Closed(idx, block, is_broken)]


def whole_blocks(deltas: Iterable[Delta]) -> list[Block]:
    """The blocks of the reply that `deltas` make."""
    stream = BlockStream()
    for delta in deltas:
        stream.feed(delta)
    stream.finish()
    blocks: list[Block] = []
    for _, block in stream.closed:
        if blocks and blocks[-1].kind == block.kind == "text":
            block = replace(block, text=blocks.pop().text + block.text)
        blocks.append(block)
    return blocks


def reply_deltas(reply: Message, deltas: tuple[tuple[Delta, ...], ...]) -> Iterable[Delta]:
    """The deltas of an answer's one reply; if only the whole reply is known, the reply as one delta of each kind."""
    return deltas[0] if deltas else replay(reply)
