"""MiniMax's calls: one JSON object a line in `<tool_calls>` (M1), or tagged calls in `<minimax:tool_call>` (M2).

Knows: both forms.  Knows not: what the values of tagged arguments are; the tool's schema says that.
Source: the function call guide of MiniMax-M1 and the tool calling guide of MiniMax-M2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ludus.text.parsers.calls import CallFormat, CallWriter, Reading
from ludus.text.parsers.lark import AN_OBJECT, CallGrammar
from ludus.text.parsers.objects import ObjectReader, read_each
from ludus.text.parsers.tagged import TaggedCall
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN_M1, _CLOSE_M1 = "<tool_calls>", "</tool_calls>"
_OPEN_M2, _CLOSE_M2 = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE, _HEAD_END, _INVOKE_END = '<invoke name="', '">', "</invoke>"
_PARAMETER_END = "</parameter>"
_CALL = TaggedCall(
    head=f"{_INVOKE}%s{_HEAD_END}\n",
    key='<parameter name="%s">',
    close=_PARAMETER_END,
    ends=_PARAMETER_END,
    foot=_INVOKE_END + "\n",
)


def _read(reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
    def read_invoke() -> Reading:
        name, _ = yield from reader.name(_HEAD_END)
        yield from _CALL.read(reader, calls, name, tools)

    if opener == _OPEN_M2:
        return read_each(reader, _INVOKE, read_invoke, _CLOSE_M2)
    return _read_objects(reader, calls)


def _read_objects(reader: TextReader, calls: CallWriter) -> Reading:
    while (yield from reader.stands("{")):
        yield from ObjectReader(reader, calls).read()
    yield from reader.after_blanks(_CLOSE_M1)


_M2 = CallFormat(
    "minimax",
    {_OPEN_M2: (_CLOSE_M2,), _OPEN_M1: (_CLOSE_M1,)},
    _read,
    CallGrammar(_OPEN_M2, _CALL.write, before="\n", between="", after=_CLOSE_M2),
    markers=(_OPEN_M1, _CLOSE_M1, _OPEN_M2, _CLOSE_M2),
    stop_after_call=(_INVOKE_END,),
)
_OBJECTS = CallGrammar(_OPEN_M1, AN_OBJECT, before="\n", between="\n", after="\n" + _CLOSE_M1)
_M1 = replace(_M2, grammar=_OBJECTS, stop_after_call=())


def minimax(template_source: str) -> CallFormat:
    """Both forms are read, and the one that the template shows is written."""
    return _M1 if _OPEN_M2 not in template_source and _OPEN_M1 in template_source else _M2
