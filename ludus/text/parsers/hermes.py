"""Hermes tool calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes, Qwen and others write them.

Knows: the tag and JSON.  Knows not: which tools exist.

    text ──<tool_call>──▶ call ──object complete, has a name──▶ after ──(</tool_call> eaten)──▶ text
                           └──── broken ──▶ raw, up to </tool_call> or the next <tool_call> ────▲

A call ends where its JSON object ends, so a closing tag inside a string ends nothing, and a call whose closing tag
was never sampled still counts. A call leaves whole: a delta cannot be taken back, and a call that breaks in its last
character must appear as content and nowhere else. Blanks between a call and its neighbours belong to the call.
"""

from __future__ import annotations

import json
from typing import Literal

from ludus.text.parsers.base import (
    ContentDelta,
    Delta,
    Parsed,
    StreamParser,
    ToolCallDelta,
    call_id,
    held_length,
    parse_at_once,
)
from ludus.text.parsers.reasoning import ReasoningSplitter

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class HermesParser:
    """Reads Hermes calls, after the thinking is split off."""

    name = "hermes"

    def __init__(self, *, splits_reasoning: bool = False) -> None:
        self._splits_reasoning = splits_reasoning

    def parse(self, text: str, *, in_reasoning: bool = False, call_seed: str = "") -> Parsed:
        return parse_at_once(self.stream(in_reasoning=in_reasoning, call_seed=call_seed), text)

    def stream(self, *, in_reasoning: bool = False, call_seed: str = "") -> StreamParser:
        splitter = ReasoningSplitter(enabled=self._splits_reasoning, in_reasoning=in_reasoning)
        return _HermesStream(splitter, call_seed)

    def __repr__(self) -> str:
        return f"HermesParser(splits_reasoning={self._splits_reasoning})"


class _HermesStream:
    def __init__(self, splitter: ReasoningSplitter, call_seed: str) -> None:
        self._splitter = splitter
        self._call_seed = call_seed
        self._num_calls = 0
        self._state: Literal["text", "call", "after", "raw"] = "text"
        self._pending = ""
        """Text of the answer that is not decided yet; in state 'call' it starts behind the opening tag."""
        self._blanks = ""
        """Blanks before the opening tag; content only if the call breaks."""
        self._scan = _ObjectScan()
        self._awaits_close = False
        self._raw = ""
        """What of a broken call has left so far, blanks before it not included."""
        self._undecoded: list[str] = []

    @property
    def undecoded(self) -> tuple[str, ...]:
        return tuple(self._undecoded)

    def feed(self, text: str) -> list[Delta]:
        deltas, answer = self._splitter.feed(text)
        return deltas + self._read(answer, is_last=False)

    def finish(self) -> list[Delta]:
        deltas, answer = self._splitter.finish()
        return deltas + self._read(answer, is_last=True)

    def _read(self, answer: str, *, is_last: bool) -> list[Delta]:
        self._pending += answer
        deltas: list[Delta] = []
        readers = {"text": self._read_text, "call": self._read_call, "after": self._read_after, "raw": self._read_raw}
        while readers[self._state](deltas, is_last):
            pass
        return deltas

    # Each reader takes what it can decide from `_pending` and returns whether the state changed.

    def _read_text(self, deltas: list[Delta], is_last: bool) -> bool:
        text, opened, rest = self._pending.partition(_OPEN)
        if opened:
            body = text.rstrip()
            self._say(body, deltas)
            self._blanks = text[len(body) :]
            self._enter_call(rest)
            return True
        certain = text if is_last else text[: len(text) - held_length(text, _OPEN)].rstrip()
        self._say(certain, deltas)
        self._pending = text[len(certain) :]
        return False

    def _enter_call(self, rest: str) -> None:
        self._state = "call"
        self._pending = rest
        self._scan = _ObjectScan()

    def _read_call(self, deltas: list[Delta], is_last: bool) -> bool:
        status = self._scan.advance(self._pending)
        if status == "open" and not is_last:
            return False
        call = _decode(self._pending[: self._scan.end]) if status == "complete" else None
        if call is None:
            self._break_call(deltas)
            return True
        name, arguments = call
        index = self._num_calls
        self._num_calls += 1
        deltas.append(ToolCallDelta(index, call_id(self._call_seed, index), name, ""))
        deltas.append(ToolCallDelta(index, None, None, arguments))
        self._pending = self._pending[self._scan.end :]
        self._awaits_close = True
        self._state = "after"
        return True

    def _break_call(self, deltas: list[Delta]) -> None:
        """Let the tag out as content, after the blanks that would have belonged to a call."""
        self._say(self._blanks + _OPEN, deltas)
        self._raw = _OPEN
        self._state = "raw"

    def _read_raw(self, deltas: list[Delta], is_last: bool) -> bool:
        ends = [end for end in (_end_of(self._pending, _CLOSE), self._pending.find(_OPEN)) if end >= 0]
        if not ends and not is_last:
            held = max(held_length(self._pending, _CLOSE), held_length(self._pending, _OPEN))
            cut = len(self._pending) - held
        else:
            cut = min(ends, default=len(self._pending))
        self._raw += self._pending[:cut]
        if ends or is_last:
            self._undecoded.append(self._raw)
            self._state = "text"
        self._say(self._pending[:cut], deltas)
        self._pending = self._pending[cut:]
        return self._state == "text"

    def _read_after(self, _deltas: list[Delta], is_last: bool) -> bool:
        """Eat the closing tag, and the blanks if another call or the end follows."""
        seen = self._pending.lstrip()
        if self._awaits_close and seen.startswith(_CLOSE):
            self._awaits_close = False
            self._pending = seen[len(_CLOSE) :]
            return True
        if not seen:
            self._pending = "" if is_last else self._pending
            return False
        if is_last or not (self._awaits_close and _CLOSE.startswith(seen)):
            self._state = "text"
            return True
        return False

    def _say(self, text: str, deltas: list[Delta]) -> None:
        if text:
            deltas.append(ContentDelta(text))


class _ObjectScan:
    """Finds where one JSON object ends, each character looked at once."""

    def __init__(self) -> None:
        self.end = 0
        """Characters looked at; after 'complete', the end of the object."""
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def advance(self, text: str) -> Literal["open", "complete", "broken"]:
        """State of the object that `text` begins with, after blanks; `text` has only grown since the last call."""
        while self.end < len(text):
            char = text[self.end]
            self.end += 1
            if self._in_string:
                if not self._step_string(char):
                    return "broken"
            elif self._depth == 0 and char != "{":
                if not char.isspace():
                    return "broken"
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return "complete"
        return "open"

    def _step_string(self, char: str) -> bool:
        """Whether the string may go on: JSON allows no control characters in it."""
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
        return char >= " "


def _end_of(text: str, tag: str) -> int:
    at = text.find(tag)
    return at if at < 0 else at + len(tag)


def _decode(text: str) -> tuple[str, str] | None:
    """Name and raw argument text of the call object in `text`. None: it is no such object."""
    try:
        if not isinstance(json.loads(text), dict):
            return None
    except (ValueError, RecursionError):
        return None
    raw = _raw_fields(text)
    name = json.loads(raw.get("name", "null"))
    arguments = raw.get("arguments", "{}")
    if not isinstance(name, str) or not name or not name.isprintable() or not arguments.startswith("{"):
        return None
    return name, arguments


def _raw_fields(text: str) -> dict[str, str]:
    """Key to the exact text of its value, for an object that is known to be valid JSON."""
    fields: dict[str, str] = {}
    decoder = json.JSONDecoder()
    at = text.index("{") + 1
    while (at := _skip(text, at, ", \t\r\n")) < len(text) and text[at] == '"':
        key, at = decoder.raw_decode(text, at)
        at = _skip(text, at, ": \t\r\n")
        _, end = decoder.raw_decode(text, at)
        fields[key] = text[at:end]
        at = end
    return fields


def _skip(text: str, at: int, chars: str) -> int:
    while at < len(text) and text[at] in chars:
        at += 1
    return at
