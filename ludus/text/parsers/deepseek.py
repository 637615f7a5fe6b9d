"""DeepSeek's calls between tokens of its own: of V3 and R1 with a fence around the arguments, of V3.1 without.

Knows: both forms.  Knows not: which tools exist. Source: the chat templates of DeepSeek-V3, -R1 and -V3.1.

    V3    <｜tool▁call▁begin｜>function<｜tool▁sep｜>name\\n```json\\n{…}\\n```<｜tool▁call▁end｜>
    V3.1  <｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ludus.text.parsers.base import call_id
from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.lark import CallGrammar, NamedGrammar
from ludus.text.parsers.objects import read_arguments
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_OPEN, _CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE, _FENCE_END = "```json", "```"

_FENCED = NamedGrammar(
    opener=_OPEN,
    frame=f"{_CALL}function{_SEPARATOR}%s\n{_FENCE}\n",
    close=f"\n{_FENCE_END}{_CALL_END}",
    between="\n",
    after=_CLOSE,
)
_BARE = NamedGrammar(opener=_OPEN, frame=f"{_CALL}%s{_SEPARATOR}", close=_CALL_END, between="", after=_CLOSE)


@dataclass(frozen=True)
class DeepseekFormat:
    """Several calls behind one tag; both forms are read, and one is written."""

    writes_fences: bool = False
    """The model is of V3's kind."""

    name = "deepseek"
    opens = {_OPEN: (_CLOSE,), _CALL: (_CALL_END,)}  # noqa: RUF012 - read only, as the protocol declares it
    starts = ""
    markers = (_OPEN, _CLOSE, _CALL, _SEPARATOR, _CALL_END)
    stop_after_call = (_CALL_END,)
    make_id = staticmethod(call_id)

    @classmethod
    def of(cls, template_source: str) -> DeepseekFormat:
        return cls(writes_fences=_FENCE in template_source)

    @property
    def grammar(self) -> CallGrammar:
        return _FENCED if self.writes_fences else _BARE

    def read(self, reader: TextReader, opener: str, calls: CallWriter, tools: Sequence[ToolSpec]) -> Reading:
        is_open = opener == _CALL or bool((yield from reader.after_blanks(_CALL)))
        while is_open:
            yield from self._read_one(reader, calls)
            is_open = bool((yield from reader.after_blanks(_CALL)))
        yield from reader.after_blanks(_CLOSE)

    def _read_one(self, reader: TextReader, calls: CallWriter) -> Reading:
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
