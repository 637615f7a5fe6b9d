"""Calls whose arguments stand one by one between tags: how they are read, and their grammar.

Knows: the schemas of arguments, Lark.  Knows not: which tags; each format names its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ludus.errors import AgentError
from ludus.text.parsers.calls import CallWriter, Reading
from ludus.text.parsers.lark import Lark
from ludus.text.parsers.parameters import ALL_TYPES, ArgumentsWriter, Schema, property_schema, referred, types_of
from ludus.text.parsers.text_reader import TextReader
from ludus.types import ToolSpec

_SLASH = re.compile(r"(?<!\\)/")
# One value stands behind one tag, whatever the others are: these bind several at once.
_BIND_SEVERAL = ("anyOf", "oneOf", "allOf", "not", "if", "$ref", "dependentRequired", "dependentSchemas")
_GAP = "\n"
"""Behind `close`, as all templates write it."""


@dataclass(frozen=True)
class TaggedCall:
    """A call as a name and tagged arguments; '%s' stands for the name and for the key of an argument."""

    head: str
    key: str
    """Before a value; as it is read, blanks may stand for a newline before another tag."""
    close: str
    """Behind a value, as the templates write it."""
    ends: str
    """What ends a value, as it is read; `close` ends with it."""
    foot: str
    """Behind the last argument."""

    def read(self, reader: TextReader, calls: CallWriter, name: str, tools: Sequence[ToolSpec]) -> Reading:
        """Read what stands behind the head, which is one call of `name`; raises BrokenCallError."""
        before_key, _, behind_key = self.key.partition("%s")
        behind_key, newline, before_value = behind_key.partition("\n")
        foot = self.foot.partition("\n")[0]
        yield from reader.skip()
        tag = yield from reader.need(before_key, foot)
        calls.begin(name)
        writer = ArgumentsWriter(calls.arguments, name, tools)
        while tag == before_key:
            key, _ = yield from reader.name(behind_key)
            if before_value:
                yield from reader.skip()
                yield from reader.need(before_value)
            elif newline:
                yield from reader.take(newline)
            yield from writer.value(reader, key, *dict.fromkeys((self.close, self.ends)))
            yield from reader.skip()
            tag = yield from reader.need(before_key, foot)
        writer.end()
        calls.done()

    def write(self, lark: Lark, tool: ToolSpec) -> str:
        """Lark of a call of `tool`."""
        root = tool.parameters
        if bound := [name for name in _BIND_SEVERAL if name in root]:
            raise AgentError(
                f"Invalid schema for the tool {tool.name!r}: {bound[0]!r} at its top level cannot be kept to, because "
                "this model writes arguments one by one. Name them in 'properties'.",
                code="invalid_schema",
                param="tools",
            )
        properties, needed = root.get("properties") or {}, root.get("required") or ()
        parts = [lark.text(self.head.replace("%s", tool.name))]
        for key in properties:
            value = _value(lark, root, key, self.close, self.ends)
            body = lark.rule(f"{lark.text(self.key.replace('%s', key))} {value} {lark.text(_GAP)}")
            parts.append(body if key in needed else f"{body}?")
        return " ".join([*parts, lark.text(self.foot)])


def _value(lark: Lark, root: Schema, key: str, tag: str, ends: str) -> str:
    """Lark of a value that the schema of `key` allows, and the `tag` behind it; text in it does not contain `ends`.

    tag: ends with `ends`. A `format` is a remark of the schema, and binds text no more than in JSON Schema itself.
    """
    schema = property_schema(root, key)
    while isinstance(reference := schema.get("$ref"), str):
        schema = {**referred(reference, root), **{name: schema[name] for name in schema if name != "$ref"}}
    types = types_of(schema, root)
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    if "string" not in types:
        return f"{lark.json({**schema, **definitions})} {lark.text(tag)}"
    text = _text_grammar(lark, schema, tag, ends)
    others = sorted(types - {"string"})
    if not others or types == ALL_TYPES:
        return text
    return lark.one_of([f"{lark.json({**schema, **definitions, 'type': others})} {lark.text(tag)}", text])


def _text_grammar(lark: Lark, schema: Schema, tag: str, ends: str) -> str:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return lark.one_of([lark.text(f"{value}{tag}") for value in values if isinstance(value, str)])
    regexes = []
    if isinstance(pattern := schema.get("pattern"), str):  # it is looked for anywhere, unless it says where
        start, end = ("" if pattern.startswith("^") else ".*"), ("" if pattern.endswith("$") else ".*")
        regexes.append(start + _SLASH.sub(r"\\/", pattern.removeprefix("^").removesuffix("$")) + end)
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if low or high is not None:
        regexes.append(f".{{{low},{'' if high is None else high}}}")
    return lark.matching(regexes, tag, ends) if regexes else lark.upto(ends)
