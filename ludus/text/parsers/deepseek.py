"""DeepSeek's calls between tokens of its own: of V3 and R1 with a fence around the arguments, of V3.1 without.

Knows: both forms.  Knows not: which tools exist. Source: the chat templates of DeepSeek-V3, -R1 and -V3.1.

    V3    <｜tool▁call▁begin｜>function<｜tool▁sep｜>name\\n```json\\n{…}\\n```<｜tool▁call▁end｜>
    V3.1  <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ludus.text.parsers.calls import CallFormat, CallWriter, Reading
from ludus.text.parsers.lark import CallGrammar, framed
from ludus.text.parsers.objects import read_arguments, read_each
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN, _CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE, _FENCE_END = "```json", "```"


def _read(reader: TextReader, opener: str, calls: CallWriter, _tools: Sequence[ToolSpec]) -> Reading:
    return read_each(reader, _CALL, lambda: _read_one(reader, calls), _CLOSE, is_open=opener == _CALL)


def _read_one(reader: TextReader, calls: CallWriter) -> Reading:
    name, _ = yield from reader.name(_SEPARATOR)
    yield from reader.skip()
    if (yield from reader.peek()) == "{":
        yield from read_arguments(reader, calls, name)
    else:  # what came first was the kind of tool
        name, _ = yield from reader.name(_FENCE)
        yield from reader.skip()
        yield from read_arguments(reader, calls, name)
        yield from reader.skip()
        yield from reader.need(_FENCE_END)
    calls.done()
    yield from reader.after_blanks(_CALL_END)


_BARE = CallFormat(
    "deepseek",
    {_OPEN: (_CLOSE,), _CALL: (_CALL_END,)},
    _read,
    CallGrammar(_OPEN, framed(f"{_CALL}%s{_SEPARATOR}", _CALL_END), between="", after=_CLOSE),
    markers=(_OPEN, _CLOSE, _CALL, _SEPARATOR, _CALL_END),
    stop_after_call=(_CALL_END,),
)
_IN_FENCES = framed(f"{_CALL}function{_SEPARATOR}%s\n{_FENCE}\n", f"\n{_FENCE_END}{_CALL_END}")
_FENCED = replace(_BARE, grammar=CallGrammar(_OPEN, _IN_FENCES, between="\n", after=_CLOSE))


def deepseek(template_source: str) -> CallFormat:
    """Both forms are read, and the one that the template shows is written."""
    return _FENCED if _FENCE in template_source else _BARE
