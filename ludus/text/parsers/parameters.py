"""Arguments that a model writes one by one, without JSON: their JSON object, written while their values come.

Knows: JSON schemas, as far as they say what a value is.  Knows not: the tags of a format.

A value whose schema allows text alone leaves as it comes. Any other waits for its end, and is then what its schema
allows: JSON as it was written, else text. Python's names of true, false and null are understood, because templates
print them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.text.parsers.calls import Reading
from ludus.text.parsers.scan import JsonScan, NotJsonError
from ludus.text.parsers.text_reader import Say, TextReader
from ludus.types import ToolSpec

Schema = Mapping[str, Any]

ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_PYTHON_NAMES = {"True": "true", "False": "false", "None": "null"}
# Schemas may refer to themselves; types are looked for this deep.
_MAX_DEPTH = 8


class ArgumentsWriter:
    """Writes the object of one call's arguments."""

    def __init__(self, say: Say, name: str, tools: Sequence[ToolSpec]) -> None:
        self._say = say
        self._root: Schema = next((tool.parameters for tool in tools if tool.name == name), {})
        self._num_written = 0

    def value(self, reader: TextReader, key: str, *closers: str) -> Reading:
        """Read the value of `key` up to the first of `closers`, and that; raises BrokenCallError if none comes."""
        self._say(("{" if self._num_written == 0 else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._num_written += 1
        types = types_of(property_schema(self._root, key), self._root)
        if types == {"string"}:
            self._say('"')
            yield from reader.copy(lambda text: self._say(escaped(text)), *closers)
            self._say('"')
            return
        parts: list[str] = []
        yield from reader.copy(parts.append, *closers)
        self._say(typed("".join(parts), types))

    def end(self) -> None:
        self._say("}" if self._num_written else "{}")


def escaped(text: str) -> str:
    """`text` as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def typed(text: str, types: frozenset[str]) -> str:
    """JSON of the value that `text` is, if it may be of `types`."""
    value = text.strip()
    value = _PYTHON_NAMES.get(value, value) if types != ALL_TYPES else value
    if types.isdisjoint(_types_written(value)):
        return f'"{escaped(text)}"'
    return value


def _types_written(text: str) -> frozenset[str]:
    """The types of the JSON value that `text` is, text not among them. Empty: it is none."""
    try:
        end, is_complete = JsonScan().advance(text, 0, is_last=True)
    except NotJsonError:
        return frozenset()
    if not is_complete or end < len(text):
        return frozenset()
    if text[0] in "-0123456789":
        return frozenset({"number"} if any(char in text for char in ".eE") else {"number", "integer"})
    names = {"{": "object", "[": "array", "n": "null", "t": "boolean", "f": "boolean"}
    return frozenset({names[text[0]]} if text[0] in names else ())


def property_schema(root: Schema, key: str) -> Schema:
    """The schema of one argument; {} where anything is allowed."""
    properties = root.get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    if not isinstance(found, Mapping):
        found = root.get("additionalProperties")
    return found if isinstance(found, Mapping) else {}


def types_of(schema: Schema, root: Schema, depth: int = 0) -> frozenset[str]:
    """The JSON types that the schema allows, as far as it says so plainly."""
    if depth > _MAX_DEPTH:
        return ALL_TYPES
    if isinstance(reference := schema.get("$ref"), str):
        return types_of(referred(reference, root), root, depth + 1)
    named = schema.get("type")
    types = frozenset([named] if isinstance(named, str) else named if isinstance(named, list) else ALL_TYPES)
    if "const" in schema:
        types &= _types_written(json.dumps(schema["const"])) or {"string"}
    if isinstance(values := schema.get("enum"), list):
        types &= frozenset().union(*(_types_written(json.dumps(value)) or {"string"} for value in values))
    for name in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(name), list):
            types &= frozenset().union(*(types_of(branch, root, depth + 1) for branch in branches))
    for branch in schema.get("allOf") or ():
        types &= types_of(branch, root, depth + 1)
    return types | ({"integer"} if "number" in types else frozenset())


def referred(reference: str, root: Schema) -> Schema:
    """What `#/$defs/X` points to; {} where it is not inside the schema."""
    at: Any = root
    for step in reference.removeprefix("#/").split("/"):
        at = at.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(at, Mapping) else None
    return at if isinstance(at, Mapping) else {}
