"""Calls of tools in sampled tokens, for loops that find them themselves.

Knows: the parsers of `text/`, under verl's names.  Knows not: tools, sessions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pydantic

from ludus.compat.verl.messages import read_tools
from ludus.compat.verl.tokens import LoopTokenizer
from ludus.episodes.reply import ReplyStream
from ludus.text.parse import parser_for
from ludus.text.parsers import base as parsers
from ludus.types import Sampling

logger = logging.getLogger(__name__)


class FunctionCall(pydantic.BaseModel):
    """One call as the model wrote it."""

    name: str
    arguments: str
    """JSON text."""
    tool_call_id: str | None = None
    """None: the model's format writes none."""


class ToolParser:
    """Takes replies apart. `get_tool_parser` makes one."""

    def __init__(self, tokenizer: LoopTokenizer, parser: parsers.ToolParser) -> None:
        self.tokenizer = tokenizer
        self._parser = parser

    def __repr__(self) -> str:
        return f"ToolParser({self._parser.name!r})"

    @classmethod
    def get_tool_parser(cls, name: str | None, tokenizer: LoopTokenizer) -> ToolParser:
        """The parser of this name. None, or 'auto': the model's own. Raises UserError that names those there are."""
        if name in (None, "auto"):
            return cls(tokenizer, tokenizer.text.parser)
        return cls(tokenizer, parser_for(tokenizer.chat_template, str(name).replace("-", "_")))

    async def extract_tool_calls(
        self, responses_ids: Sequence[int], tools: Sequence[Any] | None = None
    ) -> tuple[str, list[FunctionCall]]:
        """The text beside the calls, and the calls. What cannot be decoded as one stays in the text, and is warned
        of in the log."""
        stream = ReplyStream(
            self.tokenizer.text.tokenizer,
            Sampling(),
            self._parser.stream(tools=read_tools(tools)),
            markers=self._parser.markers,
        )
        stream.feed(responses_ids)
        stream.finish()
        for raw in stream.undecoded:
            logger.warning("Failed to decode tool call: %.200s", raw)
        message = stream.message()
        calls = [
            FunctionCall(name=call.name, arguments=call.arguments, tool_call_id=call.id) for call in message.tool_calls
        ]
        return message.content or "", calls
