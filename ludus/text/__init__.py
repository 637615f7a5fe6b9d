"""Text and tokens: the tokenizer, chat templates, incremental prompts, and parsers of replies. No torch."""

from ludus.text.chat import ChatText, shipped_templates
from ludus.text.incremental import RenderedTurn, continuation
from ludus.text.parse import (
    PARSERS,
    ContentDelta,
    Delta,
    Parsed,
    ReasoningDelta,
    StreamParser,
    ToolCallDelta,
    ToolParser,
    collect,
    opens_reasoning,
    parser_for,
)
from ludus.text.stream import Detokenizer
from ludus.text.template import ChatTemplate
from ludus.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "ChatText",
    "ContentDelta",
    "Delta",
    "Detokenizer",
    "PARSERS",
    "Parsed",
    "ReasoningDelta",
    "RenderedTurn",
    "StreamParser",
    "Tokenizer",
    "ToolCallDelta",
    "ToolParser",
    "collect",
    "continuation",
    "opens_reasoning",
    "parser_for",
    "shipped_templates",
]
