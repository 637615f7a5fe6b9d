"""Mistral's calls: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, or newer `[TOOL_CALLS]name[ARGS]{…}` a call.

Knows: both forms, and the ids that the templates demand.  Knows not: which tools exist.
Source: the chat templates of Mistral-Small-3.1 (list) and of Devstral and Magistral (`[ARGS]`, some with `[CALL_ID]`).

The templates refuse ids that are not 9 letters or digits, so ours are. An id that the model writes before the arguments
is kept; one behind them comes too late, because the call has left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from ludus.text.parsers.calls import CallFormat, CallWriter, Reading
from ludus.text.parsers.lark import AN_OBJECT, CallGrammar, framed
from ludus.text.parsers.objects import ObjectReader, read_arguments
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID_LENGTH = 9


def short_id(call_seed: str, index: int) -> str:
    """The id of call number `index`: 9 hex digits, the same for the same seed."""
    return hashlib.sha256(f"{call_seed}/{index}".encode()).hexdigest()[:_ID_LENGTH]


def _read(reader: TextReader, _opener: str, calls: CallWriter, _tools: Sequence[ToolSpec]) -> Reading:
    yield from reader.skip()
    first = yield from reader.peek()
    if first == "[":
        yield from _read_list(reader, calls)
    elif first == "{":
        yield from ObjectReader(reader, calls, reads_id=True).read()
    else:
        yield from _read_named(reader, calls)


def _read_list(reader: TextReader, calls: CallWriter) -> Reading:
    yield from reader.need("[")
    separator = ","
    while separator == ",":
        yield from reader.skip()
        yield from ObjectReader(reader, calls, reads_id=True).read()
        separator = yield from reader.after_blanks(",", "]")


def _read_named(reader: TextReader, calls: CallWriter) -> Reading:
    name, tag = yield from reader.name(_ARGS, _ID, "{")
    own_id = None
    if tag == _ID:
        own_id, tag = yield from reader.name(_ARGS, "{")
    if tag == "{":
        reader.at -= 1
    yield from reader.skip()
    yield from read_arguments(reader, calls, name, own_id)
    calls.done()


_LISTED = CallFormat(
    "mistral",
    {_OPEN: ()},
    _read,
    CallGrammar(_OPEN, AN_OBJECT, before="[", between=", ", after="]"),
    markers=(_OPEN, _ARGS, _ID),
    make_id=short_id,
)
_NAMED = replace(_LISTED, grammar=CallGrammar(_OPEN, framed("%s[ARGS]", ""), separator=""))


def mistral(template_source: str) -> CallFormat:
    """Both forms are read, and the one that the template shows is written."""
    return _NAMED if _ARGS in template_source else _LISTED
