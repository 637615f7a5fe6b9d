"""Llama 3's calls: the answer is `{"name": …, "parameters": {…}}`, perhaps behind `<|python_tag|>`; several by `;`.

Knows: the object and the tag.  Knows not: which tools exist. Source: the chat templates of Llama 3.1 and 3.2.

An answer that begins with an object is a call if the object has a name; else it is content, and no broken call.
Python code behind the tag, which calls tools of Llama's own, is content and listed as undecoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.text.parsers.calls import CallFormat, CallWriter, Reading
from ludus.text.parsers.lark import CallGrammar, framed
from ludus.text.parsers.objects import ObjectReader
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_TAG = "<|python_tag|>"
_BETWEEN = " \t\r\n;"


def _read(reader: TextReader, _opener: str, calls: CallWriter, _tools: Sequence[ToolSpec]) -> Reading:
    yield from reader.skip()
    yield from ObjectReader(reader, calls).read()
    while (yield from reader.stands("{", behind=_BETWEEN)):
        yield from ObjectReader(reader, calls).read()


LLAMA3 = CallFormat(
    "llama3",
    {_TAG: ()},
    _read,
    CallGrammar("", framed('{"name": "%s", "parameters": ', "}"), between="; "),
    markers=(_TAG,),
    starts="{",
)
