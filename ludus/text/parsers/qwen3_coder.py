"""Qwen3-Coder's calls: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

Knows: the tags.  Knows not: what values are; the tool's schema says that. Source: the chat templates of Qwen3-Coder,
Qwen3.5 and Nemotron 3, which write a value between two newlines that are not its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.text.parsers.base import call_id
from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.parameters import ArgumentsWriter
from ludus.text.parsers.tagged import TaggedGrammar
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"


class Qwen3CoderFormat:
    """Tagged arguments. Models now and then leave the outer tag out, and the call counts."""

    name = "qwen3_coder"
    opens = {_OPEN: (_CLOSE,), _FUNCTION: (_FUNCTION_END,)}  # noqa: RUF012 - read only, as the protocol declares it
    starts = ""
    markers = (_OPEN, _CLOSE, _FUNCTION_END, _PARAMETER_END)
    stop_after_call = (_CLOSE,)
    make_id = staticmethod(call_id)
    grammar = TaggedGrammar(
        opener=_OPEN,
        head="\n<function=%s>\n",
        key="<parameter=%s>\n",
        close="\n</parameter>",
        ends=_PARAMETER_END,
        foot="</function>\n</tool_call>",
        separator="\n",
    )

    def read(self, reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
        if opener == _OPEN:
            yield from reader.skip()
            yield from reader.need(_FUNCTION)
        name, _ = yield from reader.name(">")
        yield from reader.skip()
        tag = yield from reader.need(_PARAMETER, _FUNCTION_END)
        calls.begin(name)
        writer = ArgumentsWriter(calls.arguments, name, tools)
        while tag == _PARAMETER:
            key, _ = yield from reader.name(">")
            yield from reader.take("\n")
            yield from writer.value(reader, key, "\n" + _PARAMETER_END, _PARAMETER_END)
            yield from reader.skip()
            tag = yield from reader.need(_PARAMETER, _FUNCTION_END)
        writer.end()
        calls.done()
        yield from reader.after_blanks(_CLOSE)
