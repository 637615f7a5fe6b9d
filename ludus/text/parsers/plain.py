"""Replies without tool calls: thinking is split off, everything else is content."""

from __future__ import annotations

from typing import Any

from ludus.text.parsers.answer import AnswerGrammar
from ludus.text.parsers.base import ContentDelta, Delta, StreamParser, ToolParser
from ludus.text.parsers.reasoning import ReasoningSplitter
from ludus.text.parsers.tags import THINK_CLOSE, THINK_OPEN


def plain_parser(*, splits_reasoning: bool = False) -> ToolParser:
    """Reads no calls at all."""

    def stream(*, in_reasoning: bool = False, **_: Any) -> StreamParser:
        return _PlainStream(ReasoningSplitter(enabled=splits_reasoning, in_reasoning=in_reasoning))

    markers = (THINK_OPEN, THINK_CLOSE) if splits_reasoning else ()
    return ToolParser("plain", stream, AnswerGrammar(splits_reasoning=splits_reasoning).reply, markers)


class _PlainStream:
    undecoded: tuple[str, ...] = ()

    def __init__(self, splitter: ReasoningSplitter) -> None:
        self._splitter = splitter

    def feed(self, text: str) -> list[Delta]:
        deltas, answer = self._splitter.feed(text)
        return [*deltas, ContentDelta(answer)] if answer else deltas

    def finish(self) -> list[Delta]:
        deltas, answer = self._splitter.finish()
        return [*deltas, ContentDelta(answer)] if answer else deltas
