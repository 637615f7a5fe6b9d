"""Kimi's calls between tokens of its own: `functions.name:0`, which is the call's id as well, then the arguments.

Knows: the tokens.  Knows not: which tools exist. Source: the chat template of Kimi-K2-Thinking.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>…

The template shows a call by its id alone, so the id that the model wrote is the call's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ludus.text.parsers.base import call_id
from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.lark import Lark, Section, arguments_schema
from ludus.text.parsers.objects import read_arguments
from ludus.text.parsers.text_reader import TextReader, checked_name
from ludus.types import ToolSpec

_OPEN, _CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_NAMESPACE = "functions."


@dataclass(frozen=True)
class KimiGrammar:
    """Calls that are numbered by the model."""

    separator: str | None = None

    def section(self, lark: Lark, tools: Sequence[ToolSpec], *, parallel: bool) -> Section:
        number = lark.rule("/0|[1-9][0-9]{0,3}/", is_terminal=True)
        calls = [
            f"{lark.text(f'{_CALL}{_NAMESPACE}{tool.name}:')} {number} {lark.text(_ARGUMENTS)} "
            f"{lark.json(arguments_schema(tool))} {lark.text(_CALL_END)}"
            for tool in tools
        ]
        body = lark.rule(lark.one_of(calls))
        return Section(_OPEN, f"{lark.repeated(body) if parallel else body} {lark.text(_CLOSE)}")


class KimiFormat:
    """Several calls in one section, with ids of their own."""

    name = "kimi"
    opens = {_OPEN: (_CLOSE,), _CALL: (_CALL_END,)}  # noqa: RUF012 - read only, as the protocol declares it
    starts = ""
    markers = (_OPEN, _CLOSE, _CALL, _ARGUMENTS, _CALL_END)
    stop_after_call = (_CALL_END,)
    make_id = staticmethod(call_id)
    grammar = KimiGrammar()

    def read(self, reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
        is_open = opener == _CALL or bool((yield from reader.after_blanks(_CALL)))
        while is_open:
            own_id, _ = yield from reader.name(_ARGUMENTS)
            name = checked_name(own_id.removeprefix(_NAMESPACE).rpartition(":")[0] or own_id)
            yield from reader.skip()
            yield from read_arguments(reader, calls, name, own_id)
            calls.done()
            yield from reader.after_blanks(_CALL_END)
            is_open = bool((yield from reader.after_blanks(_CALL)))
        yield from reader.after_blanks(_CLOSE)
