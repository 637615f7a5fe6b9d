"""GLM's calls: `<tool_call>name`, then `<arg_key>key</arg_key>` and `<arg_value>value</arg_value>` for each argument.

Knows: the tags.  Knows not: what values are; the tool's schema says that. Source: the chat template of GLM-4.5.
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
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


class GlmFormat:
    """Tagged keys and values."""

    name = "glm"
    opens = {_OPEN: (_CLOSE,)}  # noqa: RUF012 - read only, as the protocol declares it
    starts = ""
    markers = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
    stop_after_call = (_CLOSE,)
    make_id = staticmethod(call_id)
    grammar = TaggedGrammar(
        opener=_OPEN,
        head="%s\n",
        key="<arg_key>%s</arg_key>\n<arg_value>",
        close=_VALUE_END,
        ends=_VALUE_END,
        foot=_CLOSE,
        separator="\n",
    )

    def read(self, reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
        name, tag = yield from reader.name("\n", _KEY, _CLOSE)
        if tag == "\n":
            yield from reader.skip()
            tag = yield from reader.need(_KEY, _CLOSE)
        calls.begin(name)
        writer = ArgumentsWriter(calls.arguments, name, tools)
        while tag == _KEY:
            key, _ = yield from reader.name(_KEY_END)
            yield from reader.skip()
            yield from reader.need(_VALUE)
            yield from writer.value(reader, key, _VALUE_END)
            yield from reader.skip()
            tag = yield from reader.need(_KEY, _CLOSE)
        writer.end()
        calls.done()
