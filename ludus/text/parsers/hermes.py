"""Hermes tool calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes, Qwen and others write them.

Knows: the tag and JSON.  Knows not: which tools exist.

A call ends where its JSON object ends, so a closing tag inside a string ends nothing, and a call whose closing tag
was never sampled still counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.text.parsers.calls import CallFormat, CallWriter, Reading
from ludus.text.parsers.lark import AN_OBJECT, CallGrammar
from ludus.text.parsers.objects import ObjectReader
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _read(reader: TextReader, _opener: str, calls: CallWriter, _tools: Sequence[ToolSpec]) -> Reading:
    yield from reader.skip()
    yield from ObjectReader(reader, calls).read()
    yield from reader.after_blanks(_CLOSE)


HERMES = CallFormat(
    "hermes",
    {_OPEN: (_CLOSE,)},
    _read,
    CallGrammar(_OPEN, AN_OBJECT, before="\n", after="\n" + _CLOSE, separator="\n"),
    markers=(_OPEN, _CLOSE),
    stop_after_call=(_CLOSE,),
)
