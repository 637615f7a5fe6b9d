"""Replies without tool calls: thinking is split off, everything else is content."""

from __future__ import annotations

from ludus.text.parsers.base import ContentDelta, Delta, Parsed, StreamParser, parse_at_once
from ludus.text.parsers.reasoning import ReasoningSplitter


class PlainParser:
    """Reads no calls at all."""

    name = "plain"

    def __init__(self, *, splits_reasoning: bool = False) -> None:
        self._splits_reasoning = splits_reasoning

    def parse(self, text: str, *, in_reasoning: bool = False, call_seed: str = "") -> Parsed:
        return parse_at_once(self.stream(in_reasoning=in_reasoning, call_seed=call_seed), text)

    def stream(self, *, in_reasoning: bool = False, call_seed: str = "") -> StreamParser:
        del call_seed  # no calls, no ids
        return _PlainStream(ReasoningSplitter(enabled=self._splits_reasoning, in_reasoning=in_reasoning))

    def __repr__(self) -> str:
        return f"PlainParser(splits_reasoning={self._splits_reasoning})"


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
