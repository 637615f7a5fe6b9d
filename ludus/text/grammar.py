"""The grammar that constrains an answer: forced calls, strict tools, JSON.

Knows: requests, how the parser's model writes replies.  Knows not: sampling, masks, which tokens a grammar allows.
Invariant: the parser reads any text that the grammar allows as what the request forced.

| the request | the answer |
|---|---|
| `tool_choice` required, or a name | one or more calls, arguments as the schemas say; one if named or not parallel |
| a strict tool, choice auto | free text; a call, once begun, is of a tool, and as the schema says if it is strict |
| a response format | JSON that the schema allows; with tools, that or calls |
| one call at most, in a format whose calls nothing ends | free text with one call |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ludus.errors import AgentError
from ludus.text.parsers.base import ToolParser
from ludus.text.parsers.lark import ANY_OBJECT, Lark, ReplySpec
from ludus.types import ChatRequest, ToolSpec


def grammar_of(
    request: ChatRequest, parser: ToolParser, special_ids: Mapping[str, int], *, in_reasoning: bool
) -> str | None:
    """A Lark grammar of the replies that `request` allows. None: unconstrained.

    parser: for replies to this request.  special_ids: text and id of the tokenizer's special tokens.
    in_reasoning: the prompt opened the thinking, which is unconstrained; only the answer after it is constrained.
    Raises AgentError if calls are forced and there are no tools, or if this format cannot enforce a schema.
    """
    wanted = _wanted(request, parser)
    if wanted is None:
        return None
    lark = Lark(special_ids)
    return lark.start(parser.grammar(lark, wanted, in_reasoning))


def _wanted(request: ChatRequest, parser: ToolParser) -> ReplySpec | None:
    tools = _callable(request)
    schema = None if request.response_format is None else request.response_format.schema or ANY_OBJECT
    if request.tool_choice == "required":
        if parser.name == "plain":
            raise AgentError(
                "Invalid value for 'tool_choice': the parser 'plain' of this model reads no calls, so none can be "
                "forced. Set `model.tool_parser` to the format that the model writes.",
                code="tools_unsupported",
                param="tool_choice",
            )
        return ReplySpec(tools, parallel=request.parallel_tool_calls and request.forced_tool is None)
    needs_stop = bool(tools) and not request.parallel_tool_calls and not parser.stop_after_call
    if schema is None and not needs_stop and not any(tool.strict for tool in tools):
        return None
    loose = tuple(tool if tool.strict else _loosened(tool) for tool in tools)
    return ReplySpec(loose, parallel=request.parallel_tool_calls, text=schema is None, schema=schema)


def _callable(request: ChatRequest) -> tuple[ToolSpec, ...]:
    """The tools that an answer may call. Raises AgentError if the forced one is not among them."""
    if request.tool_choice == "none":
        return ()
    if request.forced_tool is None:
        if request.tool_choice == "required" and not request.tools:
            raise AgentError("'tool_choice' forces a call, and there are no 'tools'; send some", param="tool_choice")
        return request.tools
    forced = tuple(tool for tool in request.tools if tool.name == request.forced_tool)
    if not forced:
        names = ", ".join(repr(tool.name) for tool in request.tools)
        raise AgentError(
            f"Invalid value for 'tool_choice': no tool is called {request.forced_tool!r}. "
            f"There are: {names or 'none'}.",
            param="tool_choice",
        )
    return forced


def _loosened(tool: ToolSpec) -> ToolSpec:
    """The tool with the same argument names, but any values."""
    properties = tool.parameters.get("properties")
    anything: dict[str, Any] = {key: {} for key in properties} if isinstance(properties, Mapping) else {}
    return replace(tool, parameters={"type": "object", "properties": anything})
