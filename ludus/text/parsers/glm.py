"""GLM's calls: `<tool_call>name`, then `<arg_key>key</arg_key>` and `<arg_value>value</arg_value>` for each argument.

Knows: the tags.  Knows not: what values are; the tool's schema says that. Source: the chat template of GLM-4.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.text.parsers.calls import CallFormat, CallWriter, Reading
from ludus.text.parsers.lark import CallGrammar
from ludus.text.parsers.tagged import TaggedCall
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_CALL = TaggedCall(head="%s\n", key=f"{_KEY}%s{_KEY_END}\n{_VALUE}", close=_VALUE_END, ends=_VALUE_END, foot=_CLOSE)


def _read(reader: TextReader, _opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
    name, tag = yield from reader.name("\n", _KEY, _CLOSE)
    reader.at -= len(tag)
    yield from _CALL.read(reader, calls, name, tools)


GLM = CallFormat(
    "glm",
    {_OPEN: (_CLOSE,)},
    _read,
    CallGrammar(_OPEN, _CALL.write, separator="\n"),
    markers=(_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END),
    stop_after_call=(_CLOSE,),
)
