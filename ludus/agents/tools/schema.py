"""The schema of a tool as in OpenAI's protocol and verl's files, with every keyword of its JSON schema kept.

Knows: enough of JSON schema to preserve it.  Knows not: tools, calls.
Invariant: what goes in as a mapping comes out of `model_dump(exclude_unset=True)` unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from ludus.errors import UserError
from ludus.types import ToolSpec


class _Open(pydantic.BaseModel):
    """Also keeps JSON schema keywords that have no field here (`items`, `default`, `$defs`, …)."""

    model_config = pydantic.ConfigDict(extra="allow")


class OpenAIFunctionPropertySchema(_Open):
    """One argument."""

    type: str | list[str] | None = None
    """None: the type is given in another way (`anyOf`, `$ref`), or anything is allowed."""
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_Open):
    """All arguments, as a JSON schema of an object."""

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema | bool] = {}
    required: list[str] = []


class OpenAIFunctionSchema(_Open):
    """A tool's name and arguments."""

    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = OpenAIFunctionParametersSchema()
    strict: bool = False


class OpenAIFunctionToolSchema(_Open):
    """A tool as listed in `tools` of a chat completion."""

    type: Literal["function"] = "function"
    function: OpenAIFunctionSchema


def read_schema(schema: OpenAIFunctionToolSchema | Mapping[str, Any], where: str) -> OpenAIFunctionToolSchema:
    """The schema, also from a mapping. where: its place, for the UserError that is raised if it is wrong."""
    if isinstance(schema, OpenAIFunctionToolSchema):
        return schema
    try:
        return OpenAIFunctionToolSchema.model_validate(schema)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"])) or "the schema"
        raise UserError(
            f"{where} is no tool schema: {at}: {first['msg']}, got {first['input']!r:.200}; "
            "it has the form {type: function, function: {name, description, parameters}}"
        ) from None


def spec_of(schema: OpenAIFunctionToolSchema) -> ToolSpec:
    """The schema as a request's `ToolSpec`."""
    function = schema.function
    parameters = function.parameters.model_dump(exclude_unset=True)
    for name, value in (("type", "object"), ("properties", {})):
        parameters.setdefault(name, value)
    return ToolSpec(function.name, function.description, parameters, function.strict)
