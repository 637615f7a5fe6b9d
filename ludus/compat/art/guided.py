"""Request parameters that force a model to give the same answer as a teacher.

Knows: the JSON of chat completions.  Knows not: models, how engines use the parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ludus.errors import UserError

Params = tuple[list[str] | None, dict[str, Any] | None, list[dict[str, Any]] | None]
"""`guided_choice`, `tool_choice` and `tools`; None: not needed."""


def get_guided_completion_params(completion: Any, base_tools: Iterable[Mapping[str, Any]] | None = None) -> Params:
    """Parameters that allow only the completion's first tool call, or, without one, only its text.

    base_tools: the teacher's tools.  Raises UserError if the call is of another tool.
    """
    message = completion.choices[0].message
    if not message.tool_calls:
        return [message.content], None, None
    called = message.tool_calls[0].function
    tools = {tool["function"]["name"]: tool for tool in base_tools or ()}
    if called.name not in tools:
        raise UserError(f"the completion calls {called.name!r}; base_tools has {', '.join(tools) or 'none'}")
    frozen = freeze_tool_schema(tools[called.name], json.loads(called.arguments))
    return None, {"type": "function", "function": {"name": called.name}}, [frozen]


def freeze_tool_schema(tool: Mapping[str, Any], fixed_args: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the tool that accepts only these argument values."""
    parameters = {
        "type": "object",
        "properties": {name: {"const": value} for name, value in fixed_args.items()},
        "required": list(fixed_args),
    }
    return {**tool, "function": {**tool["function"], "parameters": parameters}}
