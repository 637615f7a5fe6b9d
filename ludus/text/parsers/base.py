"""The interface of a reply parser, and its rules.

Knows: text and deltas.  Knows not: tokens, templates, wire protocols.

1. However a text is cut into chunks, `collect` of all deltas equals `parse` of the whole text.
2. Text is held back only while it may still become part of a tag, of the head of a call, or of whitespace beside one.
3. A call that cannot be parsed is content, exactly as sampled, and is listed in `undecoded`. If its beginning was
   already passed on, it is taken back with `ToolCallBroken`, and its text follows as content.
4. `arguments` of a call is a JSON object. If the format writes JSON, it is the sampled text, character by character;
   otherwise it is written while the values are sampled. Either way it only grows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ludus.text.parsers.lark import ReplyGrammar
from ludus.types import Message, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More text of the thinking; the first one, which may be empty, shows that there is a thinking block."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of one tool call. The first delta of an index carries id and name, the others only arguments."""

    index: int
    id: str | None
    """None, like `name`, in all deltas but the call's first."""
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallBroken:
    """The call with this index, of which deltas were passed on, is malformed; its text follows as content."""

    index: int


Delta = ContentDelta | ReasoningDelta | ToolCallDelta | ToolCallBroken


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed reply."""

    content: str | None
    """None: there are only calls."""
    reasoning: str | None
    """None: there was no thinking block; an empty one is ''."""
    tool_calls: tuple[ToolCall, ...] = ()
    undecoded: tuple[str, ...] = ()
    """Raw texts that began as a call and could not be parsed; they are also part of `content`."""

    @property
    def message(self) -> Message:
        return Message("assistant", self.content, reasoning=self.reasoning, tool_calls=self.tool_calls)


class StreamParser(Protocol):
    """Parses one reply while it is sampled."""

    @property
    def undecoded(self) -> tuple[str, ...]:
        """As `Parsed.undecoded`, so far."""

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain after `text`."""

    def finish(self) -> list[Delta]:
        """End the reply; returns what was held back."""


class OpenStream(Protocol):
    def __call__(
        self, *, in_reasoning: bool = False, call_seed: str = "", tools: Sequence[ToolSpec] = ()
    ) -> StreamParser:
        """The state of one reply.

        in_reasoning: the prompt already opened the thinking block.
        call_seed: text from which the ids of calls are derived, so that the same reply always has the same ids.
        tools: those the model may call; for formats without JSON arguments, their schemas give the types of values.
        """


@dataclass(frozen=True)
class ToolParser:
    """One format in which models write reasoning and tool calls. Stateless; `stream` makes the state of one reply."""

    name: str
    stream: OpenStream
    grammar: ReplyGrammar
    """The grammar of replies in this format, for constrained answers."""
    markers: tuple[str, ...] = ()
    """Texts that the parser must see even if the tokenizer has special tokens for them."""
    stop_after_call: tuple[str, ...] = ()
    """Texts, one of which ends every call, so that an answer can be ended after its first call. Empty: none."""
    without_calls: ToolParser | None = None
    """The same parser without calls. None: this one reads no calls."""

    @property
    def plain(self) -> ToolParser:
        """The parser for the same model's replies if nothing may be a call."""
        return self.without_calls or self

    def parse(
        self, text: str, *, in_reasoning: bool = False, call_seed: str = "", tools: Sequence[ToolSpec] = ()
    ) -> Parsed:
        """The parts of a finished reply; other arguments as in `stream`."""
        stream = self.stream(in_reasoning=in_reasoning, call_seed=call_seed, tools=tools)
        deltas = stream.feed(text) + stream.finish()
        return collect(deltas, stream.undecoded)


def call_id(call_seed: str, index: int) -> str:
    """The id of call number `index`: 'call_' and 24 hex digits, the same for the same seed."""
    return "call_" + hashlib.sha256(f"{call_seed}/{index}".encode()).hexdigest()[:24]


def collect(deltas: Sequence[Delta], undecoded: tuple[str, ...] = ()) -> Parsed:
    """The reply that `deltas` add up to."""
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    thoughts = [delta.text for delta in deltas if isinstance(delta, ReasoningDelta)]
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallBroken):
            del calls[delta.index]
        elif isinstance(delta, ToolCallDelta):
            known = calls.get(delta.index, ToolCall(id=delta.id or "", name=delta.name or "", arguments=""))
            calls[delta.index] = ToolCall(known.id, known.name, known.arguments + delta.arguments)
    return Parsed(
        content=None if calls and not content else content,
        reasoning="".join(thoughts) if thoughts else None,
        tool_calls=tuple(calls[index] for index in sorted(calls)),
        undecoded=undecoded,
    )


def held_length(text: str, *tags: str) -> int:
    """Length of the longest end of `text` that may grow into one of `tags`."""
    longest = max(map(len, tags), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(len(tag) > length and tag.startswith(end) for tag in tags):
            return length
    return 0


def first_of(text: str, tags: Sequence[str]) -> tuple[int, str]:
    """The position of the earliest of `tags` in `text`, and that tag (the longest, of several); (-1, '') if none."""
    found = [(at, -len(tag), tag) for tag in tags if (at := text.find(tag)) >= 0]
    return (min(found)[0], min(found)[2]) if found else (-1, "")
