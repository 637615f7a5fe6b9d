"""Llama 3's calls: the answer is `{"name": …, "parameters": {…}}`, perhaps behind `<|python_tag|>`; several by `;`.

Knows: the object and the tag.  Knows not: which tools exist. Source: the chat templates of Llama 3.1 and 3.2.

An answer that begins with an object is a call if the object has a name; else it is content, and no broken call.
Python code behind the tag, which calls tools of Llama's own, is content and listed as undecoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.text.parsers.base import call_id
from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.lark import ObjectGrammar
from ludus.text.parsers.objects import ObjectReader
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_TAG = "<|python_tag|>"
_BETWEEN = " \t\r\n;"


class Llama3Format:
    """Objects at the start of the answer."""

    name = "llama3"
    opens = {_TAG: ()}  # noqa: RUF012 - read only, as the protocol declares it
    starts = "{"
    markers = (_TAG,)
    stop_after_call = ()
    make_id = staticmethod(call_id)
    grammar = ObjectGrammar(opener="", before="", between="; ", after="", key="parameters")

    def read(self, reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
        yield from reader.skip()
        yield from ObjectReader(reader, calls).read()
        calls.done()
        while (yield from reader.stands("{", behind=_BETWEEN)):
            yield from ObjectReader(reader, calls).read()
            calls.done()
