"""Which parser reads a model's replies: chosen from its template, or by name.

Knows: the parsers and the marks they need in a template.  Knows not: tokens, requests.
"""

from __future__ import annotations

from collections.abc import Mapping

from ludus.errors import UserError
from ludus.text.parsers.base import (
    THINK_CLOSE,
    THINK_OPEN,
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

PARSERS: Mapping[str, ParserFactory] = {"hermes": HermesParser, "plain": PlainParser}


def parser_for(template_source: str | None, name: str = "auto") -> ToolParser:
    """The parser called `name`; 'auto' takes Hermes when the template shows its tag, else plain.

    Thinking is split off when the template shows the thinking tag, whatever the parser.
    Raises UserError for an unknown name.
    """
    source = template_source or ""
    if name == "auto":
        name = "hermes" if "<tool_call>" in source else "plain"
    if name not in PARSERS:
        raise UserError(f"Unknown tool_parser {name!r}. Known are: auto, {', '.join(sorted(PARSERS))}.")
    return PARSERS[name](splits_reasoning=THINK_OPEN in source or THINK_CLOSE in source)


def opens_reasoning(prompt_text: str) -> bool:
    """Whether the prompt ends inside a thinking block that it opened, so that the reply begins as thinking."""
    return prompt_text.rstrip().endswith(THINK_OPEN)


__all__ = [
    "ContentDelta",
    "Delta",
    "PARSERS",
    "Parsed",
    "ReasoningDelta",
    "StreamParser",
    "ToolCallDelta",
    "ToolParser",
    "collect",
    "opens_reasoning",
    "parser_for",
]
