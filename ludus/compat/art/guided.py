"""What makes another model answer as a teacher has answered: parameters of a request.

Knows: the JSON of chat completions.  Knows not: models, what an engine makes of the parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ludus.errors import UserError

Params = tuple[list[str] | None, dict[str, Any] | None, list[dict[str, Any]] | None]
"""`guided_choice`, `tool_choice` and `tools`; None: not needed."""


def get_guided_completion_params(completion: Any, base_tools: Iterable[Mapping[str, Any]] | None = None) -> Params:
    """The first tool call of a completion as the only one that can be made, or its text as the only choice.

    base_tools: those that the teacher had.  Raises UserError for a call of a tool that is not among them.
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
    """A copy of the tool that takes these arguments alone."""
    parameters = {
        "type": "object",
        "properties": {name: {"const": value} for name, value in fixed_args.items()},
        "required": list(fixed_args),
    }
    return {**tool, "function": {**tool["function"], "parameters": parameters}}
