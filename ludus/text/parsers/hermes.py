"""Hermes tool calls: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes, Qwen and others write them.

Knows: the tag and JSON.  Knows not: which tools exist.

A call ends where its JSON object ends, so a closing tag inside a string ends nothing, and a call whose closing tag
was never sampled still counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.text.parsers.base import call_id
from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.lark import ObjectGrammar
from ludus.text.parsers.objects import ObjectReader
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class HermesFormat:
    """One object between tags for each call."""

    name = "hermes"
    opens = {_OPEN: (_CLOSE,)}  # noqa: RUF012 - read only, as the protocol declares it
    starts = ""
    markers = (_OPEN, _CLOSE)
    stop_after_call = (_CLOSE,)
    make_id = staticmethod(call_id)
    grammar = ObjectGrammar(opener=_OPEN, before="\n", between=None, after="\n" + _CLOSE, separator="\n")

    def read(self, reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
        yield from reader.skip()
        yield from ObjectReader(reader, calls).read()
        calls.done()
        yield from reader.after_blanks(_CLOSE)
