"""Mistral's calls: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, or newer `[TOOL_CALLS]name[ARGS]{…}` a call.

Knows: both forms, and the ids that the templates demand.  Knows not: which tools exist.
Source: the chat templates of Mistral-Small-3.1 (list) and of Devstral and Magistral (`[ARGS]`, some with `[CALL_ID]`).

The templates refuse ids that are not 9 letters or digits, so ours are. An id that the model writes before the arguments
is kept; one behind them comes too late, because the call has left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.lark import CallGrammar, NamedGrammar, ObjectGrammar
from ludus.text.parsers.objects import ObjectReader, read_arguments
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID_LENGTH = 9

_LISTED = ObjectGrammar(opener=_OPEN, before="[", between=", ", after="]")
_NAMED = NamedGrammar(opener=_OPEN, frame="%s[ARGS]", close="", separator="")


def short_id(call_seed: str, index: int) -> str:
    """The id of call number `index`: 9 hex digits, the same for the same seed."""
    return hashlib.sha256(f"{call_seed}/{index}".encode()).hexdigest()[:_ID_LENGTH]


@dataclass(frozen=True)
class MistralFormat:
    """Both forms are read, and one is written."""

    writes_names: bool = False
    """The model writes `name[ARGS]`."""

    name = "mistral"
    opens = {_OPEN: ()}  # noqa: RUF012 - read only, as the protocol declares it
    starts = ""
    markers = (_OPEN, _ARGS, _ID)
    stop_after_call = ()
    make_id = staticmethod(short_id)

    @classmethod
    def of(cls, template_source: str) -> MistralFormat:
        return cls(writes_names=_ARGS in template_source)

    @property
    def grammar(self) -> CallGrammar:
        return _NAMED if self.writes_names else _LISTED

    def read(self, reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
        yield from reader.skip()
        first = yield from reader.peek()
        if first == "[":
            yield from self._read_list(reader, calls)
        elif first == "{":
            yield from ObjectReader(reader, calls, reads_id=True).read()
            calls.done()
        else:
            yield from self._read_named(reader, calls)

    def _read_list(self, reader: TextReader, calls: CallWriter) -> Reading:
        yield from reader.need("[")
        separator = ","
        while separator == ",":
            yield from reader.skip()
            yield from ObjectReader(reader, calls, reads_id=True).read()
            calls.done()
            separator = yield from reader.after_blanks(",", "]")

    def _read_named(self, reader: TextReader, calls: CallWriter) -> Reading:
        name, tag = yield from reader.name(_ARGS, _ID, "{")
        own_id = None
        if tag == _ID:
            own_id, tag = yield from reader.name(_ARGS, "{")
        if tag == "{":
            reader.at -= 1
        yield from reader.skip()
        yield from read_arguments(reader, calls, name, own_id)
        calls.done()
