"""Parsers of replies: one file per way of writing tool calls, and the seam they share."""

from ludus.text.parsers.base import (
    ContentDelta,
    Delta,
    Parsed,
    ParserFactory,
    ReasoningDelta,
    StreamParser,
    ToolCallDelta,
    ToolParser,
    collect,
)
from ludus.text.parsers.hermes import HermesParser
from ludus.text.parsers.plain import PlainParser

__all__ = [
    "ContentDelta",
    "Delta",
    "HermesParser",
    "Parsed",
    "ParserFactory",
    "PlainParser",
    "ReasoningDelta",
    "StreamParser",
    "ToolCallDelta",
    "ToolParser",
    "collect",
]
