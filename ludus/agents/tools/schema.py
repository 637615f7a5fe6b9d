"""The schema of a tool as OpenAI's protocol and verl's files write it, with every word of its JSON schema kept.

Knows: JSON schema as far as to carry it whole.  Knows not: tools, calls.
Invariant: what goes in as a mapping comes out of `model_dump(exclude_unset=True)` unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from ludus.errors import UserError
from ludus.types import ToolSpec


class _Open(pydantic.BaseModel):
    """Words of JSON schema that have no field of their own (`items`, `default`, `$defs`, …) are kept too."""

    model_config = pydantic.ConfigDict(extra="allow")


class OpenAIFunctionPropertySchema(_Open):
    """One argument."""

    type: str | list[str] | None = None
    """None: the schema says it otherwise (`anyOf`, `$ref`), or allows anything."""
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(_Open):
    """All arguments, as a JSON schema of an object."""

    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema | bool] = {}
    required: list[str] = []


class OpenAIFunctionSchema(_Open):
    """What a tool is called and takes."""

    name: str
    description: str = ""
    parameters: OpenAIFunctionParametersSchema = OpenAIFunctionParametersSchema()
    strict: bool = False


class OpenAIFunctionToolSchema(_Open):
    """A tool as `tools` of a chat completion lists it."""

    type: Literal["function"] = "function"
    function: OpenAIFunctionSchema


def read_schema(schema: OpenAIFunctionToolSchema | Mapping[str, Any], where: str) -> OpenAIFunctionToolSchema:
    """The schema, from a mapping too. Raises UserError that says what of it is wrong; `where` is what it calls it."""
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
    """The same in the vocabulary of a request."""
    function = schema.function
    parameters = function.parameters.model_dump(exclude_unset=True)
    for name, value in (("type", "object"), ("properties", {})):
        parameters.setdefault(name, value)
    return ToolSpec(function.name, function.description, parameters, function.strict)
