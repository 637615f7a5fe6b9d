"""MiniMax's calls: one JSON object a line in `<tool_calls>` (M1), or tagged calls in `<minimax:tool_call>` (M2).

Knows: both forms.  Knows not: what the values of tagged arguments are; the tool's schema says that.
Source: the function call guide of MiniMax-M1 and the tool calling guide of MiniMax-M2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ludus.text.parsers.base import call_id
from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.lark import CallGrammar, ObjectGrammar
from ludus.text.parsers.objects import ObjectReader
from ludus.text.parsers.parameters import ArgumentsWriter
from ludus.text.parsers.tagged import TaggedGrammar
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN_M1, _CLOSE_M1 = "<tool_calls>", "</tool_calls>"
_OPEN_M2, _CLOSE_M2 = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE, _INVOKE_END = '<invoke name="', "</invoke>"
_PARAMETER, _PARAMETER_END = '<parameter name="', "</parameter>"
_HEAD_END = '">'

_GRAMMAR_M1 = ObjectGrammar(opener=_OPEN_M1, before="\n", between="\n", after="\n" + _CLOSE_M1)
_GRAMMAR_M2 = TaggedGrammar(
    opener=_OPEN_M2,
    before="\n",
    head='<invoke name="%s">\n',
    key='<parameter name="%s">',
    close=_PARAMETER_END,
    ends=_PARAMETER_END,
    foot=_INVOKE_END + "\n",
    between="",
    after=_CLOSE_M2,
)


@dataclass(frozen=True)
class MinimaxFormat:
    """Several calls behind one tag; both forms are read, and one is written."""

    writes_objects: bool = False
    """The model is M1."""

    name = "minimax"
    opens = {_OPEN_M2: (_CLOSE_M2,), _OPEN_M1: (_CLOSE_M1,)}  # noqa: RUF012 - read only, as the protocol declares it
    starts = ""
    markers = (_OPEN_M1, _CLOSE_M1, _OPEN_M2, _CLOSE_M2)
    make_id = staticmethod(call_id)

    @classmethod
    def of(cls, template_source: str) -> MinimaxFormat:
        return cls(writes_objects=_OPEN_M2 not in template_source and _OPEN_M1 in template_source)

    @property
    def stop_after_call(self) -> tuple[str, ...]:
        return () if self.writes_objects else (_INVOKE_END,)

    @property
    def grammar(self) -> CallGrammar:
        return _GRAMMAR_M1 if self.writes_objects else _GRAMMAR_M2

    def read(self, reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
        if opener == _OPEN_M1:
            return _read_objects(reader, calls)
        return _read_invokes(reader, calls, tools)


def _read_objects(reader: TextReader, calls: CallWriter) -> Reading:
    while (yield from reader.stands("{")):
        yield from ObjectReader(reader, calls).read()
        calls.done()
    yield from reader.after_blanks(_CLOSE_M1)


def _read_invokes(reader: TextReader, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
    while (yield from reader.after_blanks(_INVOKE)):
        name, _ = yield from reader.name(_HEAD_END)
        yield from reader.skip()
        tag = yield from reader.need(_PARAMETER, _INVOKE_END)
        calls.begin(name)
        writer = ArgumentsWriter(calls.arguments, name, tools)
        while tag == _PARAMETER:
            key, _ = yield from reader.name(_HEAD_END)
            yield from writer.value(reader, key, _PARAMETER_END)
            yield from reader.skip()
            tag = yield from reader.need(_PARAMETER, _INVOKE_END)
        writer.end()
        calls.done()
    yield from reader.after_blanks(_CLOSE_M2)
