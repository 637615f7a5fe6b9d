"""Reads what a request says about tools and the response format, once for all protocols.

Knows: functions, choices, JSON schemas.  Knows not: which protocol asks, how a model is held to any of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from ludus.gateway.dialects.base import JsonObject
from ludus.gateway.dialects.fields import (
    as_object,
    join,
    missing,
    read_boolean,
    read_choice,
    read_object,
    read_objects,
    read_text,
    require_text,
    wrong_value,
)
from ludus.types import ResponseFormat, ToolChoice, ToolSpec

CHOICES: tuple[ToolChoice, ...] = get_args(ToolChoice)


@dataclass(frozen=True, slots=True)
class ToolChoiceRule:
    """Which tools an answer may or must call."""

    mode: ToolChoice = "auto"
    forced: str | None = None
    """With `required`: the one tool that must be called. None: any of them."""
    allowed: tuple[str, ...] | None = None
    """The model is shown only these tools. None: all of them."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request and how they may be called; the fields are those of a ChatRequest."""

    tools: tuple[ToolSpec, ...]
    tool_choice: ToolChoice
    forced_tool: str | None
    parallel_tool_calls: bool


def read_tool_choice(
    value: Any, name_of: Callable[[JsonObject, str], str], *, nested: str | None = None
) -> ToolChoiceRule:
    """The `tool_choice` of OpenAI's protocols.

    name_of: (entry, path): the name of the function in the entry.  nested: field of the choice that holds the content
    of `allowed_tools`. None: the choice itself holds it.
    """
    at = "tool_choice"
    if value is None or value in CHOICES:
        return ToolChoiceRule() if value is None else ToolChoiceRule(value)
    if isinstance(value, str):
        raise wrong_value(value, f"{', '.join(map(repr, CHOICES))}, or an object", at)
    choice = as_object(value, at)
    kind = require_text(choice, "type", at=at)
    if kind == "function":
        return ToolChoiceRule("required", name_of(choice, at))
    if kind != "allowed_tools":
        raise wrong_value(kind, "'function', 'allowed_tools'", join(at, "type"))
    if nested is not None:
        choice, at = read_object(choice, nested, at=at), join(at, nested)
    names = tuple(name_of(entry, entry_at) for entry_at, entry in read_objects(choice, "tools", at=at))
    mode = read_choice(choice, "mode", ("auto", "required"), at=at)
    if mode is None:
        raise missing(join(at, "mode"))
    if not names:
        raise wrong_value([], "at least one tool", join(at, "tools"))
    # Requiring one of a single tool means forcing it.
    forced = names[0] if mode == "required" and len(names) == 1 else None
    return ToolChoiceRule(mode, forced, names)  # type: ignore[arg-type]  # a ToolChoice


def read_tool_use(
    body: JsonObject,
    read_tool: Callable[[JsonObject, str], ToolSpec],
    name_of: Callable[[JsonObject, str], str],
    *,
    nested: str | None = None,
) -> ToolUse:
    """The tools of a request in OpenAI's protocols. read_tool: (tool, path).  The rest as in `read_tool_choice`."""
    return tool_use(
        tuple([read_tool(tool, at) for at, tool in read_objects(body, "tools")]),
        read_tool_choice(body.get("tool_choice"), name_of, nested=nested),
        parallel=read_boolean(body, "parallel_tool_calls", True),
    )


def tool_use(tools: tuple[ToolSpec, ...], choice: ToolChoiceRule, *, parallel: bool) -> ToolUse:
    """`tools` under `choice`; empty without tools. Raises AgentError if the tools cannot satisfy the choice."""
    names = [tool.name for tool in tools]
    for name in choice.allowed or (() if choice.forced is None else (choice.forced,)):
        if name not in names:
            offered = ", ".join(map(repr, names)) or "of which there are none"
            raise wrong_value(name, f"the name of one of the tools, {offered}", "tool_choice")
    if choice.mode == "required" and not tools:
        raise wrong_value(choice.mode, "only together with 'tools'", "tool_choice")
    if not tools:
        return ToolUse((), "auto", None, True)
    if choice.allowed is not None:
        tools = tuple(tool for tool in tools if tool.name in choice.allowed)
    return ToolUse(tools, choice.mode, choice.forced, parallel)


def read_function(function: JsonObject, at: str, *, schema: str = "parameters") -> ToolSpec:
    """A tool from the object that describes it. schema: the field with the JSON schema of its arguments."""
    return ToolSpec(
        name=require_text(function, "name", at=at),
        description=read_text(function, "description", at=at) or "",
        parameters=read_object(function, schema, at=at),
        strict=read_boolean(function, "strict", False, at=at),
    )


def read_format(entry: JsonObject, at: str, *, nested: str | None = None) -> ResponseFormat | None:
    """The response format that `entry` asks for. nested: the field that holds the schema and its name, if any."""
    kind = require_text(entry, "type", at=at)
    if kind == "text":
        return None
    if kind == "json_object":
        return ResponseFormat()
    if kind != "json_schema":
        raise wrong_value(kind, "'text', 'json_object', 'json_schema'", join(at, "type"))
    if nested is not None:
        at, entry = join(at, nested), read_object(entry, nested, at=at)
    # The answer always follows the schema, whether or not `strict` asks for it: a looser answer helps nobody.
    read_boolean(entry, "strict", False, at=at)
    return ResponseFormat(None if entry.get("schema") is None else read_object(entry, "schema", at=at))
