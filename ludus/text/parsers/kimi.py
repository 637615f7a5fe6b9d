"""Kimi's calls between tokens of its own: `functions.name:0`, which is the call's id as well, then the arguments.

Knows: the tokens.  Knows not: which tools exist. Source: the chat template of Kimi-K2-Thinking.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>…

The template shows a call by its id alone, so the id that the model wrote is the call's.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.text.parsers.calls import CallFormat, CallWriter, Reading
from ludus.text.parsers.lark import CallGrammar, Lark, arguments_schema
from ludus.text.parsers.objects import read_arguments, read_each
from ludus.text.parsers.text_reader import TextReader, checked_name
from ludus.types import ToolSpec

_OPEN, _CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_NAMESPACE = "functions."


def _write_call(lark: Lark, tool: ToolSpec) -> str:
    number = lark.rule("/0|[1-9][0-9]{0,3}/", is_terminal=True)
    return (
        f"{lark.text(f'{_CALL}{_NAMESPACE}{tool.name}:')} {number} {lark.text(_ARGUMENTS)} "
        f"{lark.json(arguments_schema(tool))} {lark.text(_CALL_END)}"
    )


def _read(reader: TextReader, opener: str, calls: CallWriter, _tools: Sequence[ToolSpec]) -> Reading:
    def read_one() -> Reading:
        own_id, _ = yield from reader.name(_ARGUMENTS)
        name = checked_name(own_id.removeprefix(_NAMESPACE).rpartition(":")[0] or own_id)
        yield from reader.skip()
        yield from read_arguments(reader, calls, name, own_id)
        calls.done()
        yield from reader.after_blanks(_CALL_END)

    return read_each(reader, _CALL, read_one, _CLOSE, is_open=opener == _CALL)


KIMI = CallFormat(
    "kimi",
    {_OPEN: (_CLOSE,), _CALL: (_CALL_END,)},
    _read,
    CallGrammar(_OPEN, _write_call, between="", after=_CLOSE),
    markers=(_OPEN, _CLOSE, _CALL, _ARGUMENTS, _CALL_END),
    stop_after_call=(_CALL_END,),
)
