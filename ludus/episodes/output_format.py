"""The format of an answer: the parser that reads it, the grammar that constrains it, and what ends it early.

Knows: requests, a model's text.  Knows not: prompts as tokens, seeds, engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ludus.episodes.reply import ReplyStream
from ludus.errors import AgentError, UserError
from ludus.text.chat import ChatText
from ludus.text.grammar import grammar_of
from ludus.text.parse import opens_reasoning
from ludus.text.parsers.base import ToolParser
from ludus.text.tokenizer import Tokenizer
from ludus.types import ChatRequest, Sampling, ToolSpec


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The format of the answers to one request."""

    parser: ToolParser
    in_reasoning: bool
    """The prompt ends inside a thinking block."""
    grammar: str | None = None
    """None: the request does not constrain them."""
    stops: tuple[str, ...] = ()
    """Texts that end the answer and are part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Special tokens that end the answer and are part of it."""

    def shape(self, sampling: Sampling) -> Sampling:
        """`sampling` with what this format adds."""
        if self.grammar is None and not self.stops and not self.stop_token_ids:
            return sampling
        return replace(
            sampling,
            grammar=self.grammar or sampling.grammar,
            stop=(*sampling.stop, *self.stops),
            stop_token_ids=(*sampling.stop_token_ids, *self.stop_token_ids),
        )

    def reply(self, tokenizer: Tokenizer, sampling: Sampling, tools: Sequence[ToolSpec], call_seed: str) -> ReplyStream:
        """A stream that reads one answer. It leaves out the stops of `sampling`, but not those of this format."""
        stream = self.parser.stream(in_reasoning=self.in_reasoning, call_seed=call_seed, tools=tools)
        return ReplyStream(tokenizer, sampling, stream, markers=self.parser.markers)


def output_format(request: ChatRequest, text: ChatText, prompt_text: str) -> OutputFormat:
    """The format of answers to `request`.

    Raises AgentError if tool calls are forced that the model cannot make, and with the code `invalid_schema` if a
    schema cannot be enforced.
    """
    parser = text.parser_of(request)
    in_reasoning = request.prompt is None and opens_reasoning(prompt_text)
    special_ids = text.tokenizer.special_ids
    grammar = grammar_of(request, parser, special_ids, in_reasoning=in_reasoning)
    if grammar is not None:
        _check(grammar, request, text)
    form = OutputFormat(parser, in_reasoning, grammar)
    if grammar is not None or request.parallel_tool_calls or not request.tools:
        return form
    tags = parser.stop_after_call
    return replace(
        form,
        stops=tuple(tag for tag in tags if tag not in special_ids),
        stop_token_ids=tuple(special_ids[tag] for tag in tags if tag in special_ids),
    )


def _check(grammar: str, request: ChatRequest, text: ChatText) -> None:
    try:
        text.constraints.check(grammar)
    except UserError as error:
        refused = str(error).partition("\n")[0]
        raise AgentError(
            f"Invalid schema: {refused}. Leave out of the schema what is named there, or the wish to hold to it.",
            code="invalid_schema",
            param="response_format" if request.response_format is not None else "tools",
        ) from error
