"""Calls of tools as verl's users take them apart.

Knows: JSON.  Knows not: tools, models.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import pydantic


class OpenAIFunctionParsedSchema(pydantic.BaseModel):
    """A call as the model wrote it."""

    name: str
    arguments: str
    """JSON text."""


class OpenAIFunctionCallSchema(pydantic.BaseModel):
    """A call with its arguments read."""

    name: str
    arguments: dict[str, Any]

    @staticmethod
    def from_openai_function_parsed_schema(
        parsed_schema: OpenAIFunctionParsedSchema,
    ) -> tuple[OpenAIFunctionCallSchema, bool]:
        """The call, and whether its arguments could not be read as a mapping; it has none then."""
        try:
            arguments = json.loads(parsed_schema.arguments)
        except ValueError:
            arguments = None
        is_mapping = isinstance(arguments, dict)
        return OpenAIFunctionCallSchema(
            name=parsed_schema.name, arguments=arguments if is_mapping else {}
        ), not is_mapping


class OpenAIFunctionToolCall(pydantic.BaseModel):
    """A call as an answer of OpenAI's protocol holds it."""

    id: str
    type: Literal["function"] = "function"
    function: OpenAIFunctionCallSchema
