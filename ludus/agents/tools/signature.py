"""Makes a tool's schema from a function's signature and docstring, and converts a call's arguments to the function's.

Knows: annotations, docstrings in Google's or Sphinx's form.  Knows not: who runs the function.
Invariant: the function gets what the schema promises: names, types, defaults.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, get_type_hints

import pydantic
import pydantic_core
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from ludus.agents.tools.answer import ToolError
from ludus.agents.tools.schema import OpenAIFunctionToolSchema, read_schema
from ludus.errors import UserError

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):\s*$")
_SUMMARY = "summary"
_ARGUMENT_SECTIONS = ("Args", "Arguments", "Parameters")
_GOOGLE_ARGUMENT = re.compile(r"^\s+\**(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_SPHINX_ARGUMENT = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Docstring:
    """The descriptions in a docstring: of the function and of each argument."""

    summary: str
    arguments: Mapping[str, str]


class Signature:
    """A function's parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises UserError if a model could not call the function with named arguments."""
        self._name = getattr(function, "__name__", type(function).__name__)
        self._docstring = read_docstring(inspect.getdoc(function) or "")
        self._adapter = self._build(function)

    def schema(self, name: str) -> OpenAIFunctionToolSchema:
        """The schema of this function as the tool `name`."""
        parameters = _without_titles(self._adapter.json_schema(schema_generator=_Plain))
        parameters.setdefault("properties", {})
        if parameters.get("additionalProperties") is False:  # models know, and a call that does not gets an error
            del parameters["additionalProperties"]
        function = {"name": name, "description": self._docstring.summary, "parameters": parameters}
        return read_schema({"type": "function", "function": function}, f"the schema of {self._name}")

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, converted to the annotated types. Raises ToolError that names the wrong ones."""
        try:
            read: dict[str, Any] = self._adapter.validate_python(dict(arguments))
        except pydantic.ValidationError as error:
            raise ToolError("; ".join(map(_explain, error.errors()))) from None
        return read

    def _build(self, function: Callable[..., Any]) -> pydantic.TypeAdapter[dict[str, Any]]:
        try:
            hints = get_type_hints(
                function if inspect.isroutine(function) else type(function).__call__, include_extras=True
            )
        except NameError as error:
            raise UserError(
                f"an annotation of the tool {self._name} cannot be read: {error}; name types that its module knows"
            ) from None
        fields: dict[str, Any] = {}
        is_open = False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                is_open = True
            elif parameter.kind in _BY_NAME:
                fields[parameter.name] = self._field(parameter, hints.get(parameter.name, Any))
            else:
                raise UserError(f"the tool {self._name} takes {parameter}, but a model gives arguments by name")
        made_of_fields: Any = TypedDict  # mypy reads only calls that name every field
        arguments = made_of_fields("Arguments", fields)
        config = pydantic.ConfigDict(extra="allow" if is_open else "forbid", arbitrary_types_allowed=True)
        arguments.__pydantic_config__ = config
        try:
            return pydantic.TypeAdapter(arguments)
        except pydantic.errors.PydanticUserError as error:
            raise UserError(
                f"the signature of the tool {self._name} cannot be a JSON schema: {error.message}"
            ) from None

    def _field(self, parameter: inspect.Parameter, annotation: Any) -> Any:
        description = self._docstring.arguments.get(parameter.name)
        if parameter.default is inspect.Parameter.empty:
            return Annotated[annotation, pydantic.Field(description=description)] if description else annotation
        try:
            default = {"default": pydantic_core.to_jsonable_python(parameter.default)}
        except pydantic_core.PydanticSerializationError:  # then the schema says only that it may be left out
            default = {}
        return NotRequired[Annotated[annotation, pydantic.Field(description=description, json_schema_extra=default)]]


def read_docstring(text: str) -> Docstring:
    """The parts of a docstring; the description of an argument may span several lines."""
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section, current = _SUMMARY, ""
    margin = 0
    """Indentation of the argument names in Google's form."""
    for line in text.splitlines():
        heading, sphinx = _SECTION.match(line), _SPHINX_ARGUMENT.match(line)
        google = _GOOGLE_ARGUMENT.match(line) if section in _ARGUMENT_SECTIONS else None
        indent = len(line) - len(line.lstrip())
        if heading:
            section, current = heading.group(1), ""
        elif sphinx:
            section, current = "param", sphinx.group(1)
            arguments[current] = sphinx.group(2).strip()
        elif google and (not current or indent <= margin):
            margin, current = indent, google.group(1)
            arguments[current] = google.group(2).strip()
        elif line.startswith(":"):
            section, current = "field", ""
        elif current and line.strip():
            arguments[current] = f"{arguments[current]} {line.strip()}".strip()
        elif section == _SUMMARY:
            summary.append(line)
    return Docstring("\n".join(summary).strip(), arguments)


class _Plain(GenerateJsonSchema):
    """Schemas as people write them: `type` first, and no titles, which only repeat names and cost prompt tokens."""

    def sort(self, value: JsonSchemaValue, parent_key: str | None = None) -> JsonSchemaValue:
        return value

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def get_flattened_anyof(self, schemas: list[JsonSchemaValue]) -> JsonSchemaValue:
        """`int | float` is `type: [integer, number]`, which templates write more briefly than `anyOf`."""
        if all(schema.keys() == {"type"} and isinstance(schema["type"], str) for schema in schemas):
            return {"type": [schema["type"] for schema in schemas]}
        return super().get_flattened_anyof(schemas)


def _without_titles(schema: JsonSchemaValue) -> JsonSchemaValue:
    """The schema and those in its `$defs`, without the titles that pydantic adds."""
    bare = {key: value for key, value in schema.items() if key != "title"}
    if "$defs" in bare:
        bare["$defs"] = {name: _without_titles(definition) for name, definition in bare["$defs"].items()}
    return bare


def _explain(detail: Any) -> str:
    at = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return f"there is no argument {at!r}"
    if detail["type"] == "missing":
        return f"the argument {at!r} is missing"
    return f"the argument {at!r}: {detail['msg']}, got {detail['input']!r:.200}"
