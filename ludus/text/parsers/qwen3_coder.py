"""Qwen3-Coder's calls: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

Knows: the tags.  Knows not: what values are; the tool's schema says that. Source: the chat templates of Qwen3-Coder,
Qwen3.5 and Nemotron 3, which write a value between two newlines that are not its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.text.parsers.calls import CallFormat, CallWriter, Reading
from ludus.text.parsers.lark import CallGrammar
from ludus.text.parsers.tagged import TaggedCall
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER_END = "</parameter>"
_CALL = TaggedCall(
    head=f"\n{_FUNCTION}%s>\n",
    key="<parameter=%s>\n",
    close="\n" + _PARAMETER_END,
    ends=_PARAMETER_END,
    foot=f"{_FUNCTION_END}\n{_CLOSE}",
)


def _read(reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
    """Models now and then leave the outer tag out, and the call counts."""
    if opener == _OPEN:
        yield from reader.skip()
        yield from reader.need(_FUNCTION)
    name, _ = yield from reader.name(">")
    yield from _CALL.read(reader, calls, name, tools)
    yield from reader.after_blanks(_CLOSE)


QWEN3_CODER = CallFormat(
    "qwen3_coder",
    {_OPEN: (_CLOSE,), _FUNCTION: (_FUNCTION_END,)},
    _read,
    CallGrammar(_OPEN, _CALL.write, separator="\n"),
    markers=(_OPEN, _CLOSE, _FUNCTION_END, _PARAMETER_END),
    stop_after_call=(_CLOSE,),
)
