"""Replies without tool calls: thinking is split off, everything else is content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ludus.text.parsers.answer import AnswerGrammar
from ludus.text.parsers.base import (
    ContentDelta,
    Delta,
    Parsed,
    StreamParser,
    ToolParser,
    parse_at_once,
)
from ludus.text.parsers.lark import ReplyGrammar
from ludus.text.parsers.reasoning import ReasoningSplitter
from ludus.text.parsers.tags import THINK_CLOSE, THINK_OPEN
from ludus.types import ToolSpec


@dataclass(frozen=True)
class PlainParser:
    """Reads no calls at all."""

    splits_reasoning: bool = False

    name = "plain"
    stop_after_call = ()

    @property
    def markers(self) -> tuple[str, ...]:
        return (THINK_OPEN, THINK_CLOSE) if self.splits_reasoning else ()

    @property
    def plain(self) -> ToolParser:
        return self

    @property
    def grammar(self) -> ReplyGrammar:
        return AnswerGrammar(splits_reasoning=self.splits_reasoning)

    def parse(
        self, text: str, *, in_reasoning: bool = False, call_seed: str = "", tools: Sequence[ToolSpec] = ()
    ) -> Parsed:
        return parse_at_once(self.stream(in_reasoning=in_reasoning, call_seed=call_seed, tools=tools), text)

    def stream(
        self, *, in_reasoning: bool = False, call_seed: str = "", tools: Sequence[ToolSpec] = ()
    ) -> StreamParser:
        return _PlainStream(ReasoningSplitter(enabled=self.splits_reasoning, in_reasoning=in_reasoning))


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
