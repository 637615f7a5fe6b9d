"""Pythonic calls: `[name(key=value, …), …]`, the whole answer or between tags of Llama 4 or LFM 2.

Knows: Python's literals, and JSON's where they differ.  Knows not: which tools exist.
Source: the chat templates of Llama 3.2 and 4 (`<|python_start|>`), and of LFM2 (`<|tool_call_start|>`).

Arguments are written as JSON while they come. An answer that begins with a bracket is a call once a name and a
parenthesis follow; else it is content, and no broken call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence

from ludus.text.parsers.calls import CallFormat, CallWriter, Reading
from ludus.text.parsers.lark import CallGrammar, Lark
from ludus.text.parsers.parameters import escaped, property_schema
from ludus.text.parsers.scan import MAX_DEPTH, is_number
from ludus.text.parsers.text_reader import BrokenCallError, Say, TextReader
from ludus.types import ToolSpec

_TAGS = {"<|tool_call_start|>": "<|tool_call_end|>", "<|python_start|>": "<|python_end|>"}
_NAMES = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\\n", "t": "\\t", "r": "\\r", "b": "\\b", "f": "\\f", '"': '\\"', "\\": "\\\\", "'": "'", "/": "/"}
_CODES = {"x": 2, "u": 4, "U": 8}
"""Escapes that spell a character by its number, and of how many digits."""
_CLOSES = {"[": "]", "(": ")", "{": "}"}
_IDENTIFIER = re.compile(r"[^\W\d][\w.\-]*")
_WORD = re.compile(r"[-+.\w]+")


def _write_call(lark: Lark, tool: ToolSpec) -> str:
    """Arguments in the order of the schema, those that are needed first."""
    root = tool.parameters
    needed = root.get("required") or ()
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    items = []
    for key in sorted(root.get("properties") or {}, key=lambda key: key not in needed):
        value = lark.json({**property_schema(root, key), **definitions})
        items.append((lark.rule(f"{lark.text(key + '=')} {value}"), key in needed))
    return f"{lark.text(tool.name + '(')} {lark.listed(items, ', ')} {lark.text(')')}"


def _read(reader: TextReader, opener: str, calls: CallWriter, _tools: Sequence[ToolSpec]) -> Reading:
    yield from reader.skip()
    yield from reader.need("[")
    separator = ","
    while separator == ",":
        yield from _read_call(reader, calls)
        separator = yield from reader.after_blanks(",", "]")
    if opener:
        yield from reader.after_blanks(_TAGS[opener])


def pythonic(template_source: str) -> CallFormat:
    """With and without tags it is read, and as the template shows it is written."""
    opener = next((opener for opener in _TAGS if opener in template_source), "")
    return CallFormat(
        "pythonic",
        {opener: (closer,) for opener, closer in _TAGS.items()},
        _read,
        CallGrammar(opener, _write_call, before="[", between=", ", after="]" + _TAGS.get(opener, "")),
        markers=(*_TAGS, *_TAGS.values()),
        starts="[",
    )


def _read_call(reader: TextReader, calls: CallWriter) -> Reading:
    yield from reader.skip()
    name = yield from _read_name(reader, "(")
    calls.is_sure = True
    yield from reader.skip()
    if (yield from reader.take(")")):
        calls.begin(name)
        calls.arguments("{}")
        calls.done()
        return
    key = yield from _read_name(reader, "=")
    calls.begin(name)
    before = "{"
    while True:
        calls.arguments(before + json.dumps(key, ensure_ascii=False) + ": ")
        yield from _read_value(reader, calls.arguments, 0)
        yield from reader.skip()
        end = yield from reader.need(",", ")")
        yield from reader.skip()
        if end == ")" or (yield from reader.take(")")):
            break
        key = yield from _read_name(reader, "=")
        before = ", "
    calls.arguments("}")
    calls.done()


def _read_name(reader: TextReader, end: str) -> Generator[None, None, str]:
    """The identifier before `end`, which is taken."""
    name = yield from reader.run(_IDENTIFIER.fullmatch)
    yield from reader.skip()
    yield from reader.need(end)
    if not name:
        raise BrokenCallError
    return name


def _read_value(reader: TextReader, say: Say, depth: int) -> Reading:
    yield from reader.skip()
    char = yield from reader.peek()
    if depth > MAX_DEPTH:
        raise BrokenCallError
    if char and char in "'\"":
        yield from _read_string(reader, say)
    elif char and char in _CLOSES:
        yield from _read_items(reader, say, depth)
    else:
        word = yield from reader.run(_WORD.fullmatch)
        if word not in _NAMES and not is_number(word):
            raise BrokenCallError
        say(_NAMES.get(word, word))


def _read_items(reader: TextReader, say: Say, depth: int) -> Reading:
    """A list, a tuple or a mapping."""
    opener = reader.text[reader.at]
    reader.at += 1
    end, before = _CLOSES[opener], ""
    say("{" if opener == "{" else "[")
    while True:
        yield from reader.skip()
        if (yield from reader.take(end)):
            break
        say(before)
        before = ", "
        if opener == "{":
            if (yield from reader.peek()) not in ("'", '"'):
                raise BrokenCallError
            yield from _read_string(reader, say)
            yield from reader.skip()
            yield from reader.need(":")
            say(": ")
        yield from _read_value(reader, say, depth + 1)
        yield from reader.skip()
        if (yield from reader.need(",", end)) == end:
            break
    say("}" if opener == "{" else "]")


def _read_string(reader: TextReader, say: Say) -> Reading:
    quote = reader.text[reader.at]
    reader.at += 1
    say('"')
    while (yield from reader.copy(lambda text: say(escaped(text)), quote, "\\")) != quote:
        yield from _read_escape(reader, say)
    say('"')


def _read_escape(reader: TextReader, say: Say) -> Reading:
    char = yield from reader.peek()
    reader.at += 1
    if not char:
        raise BrokenCallError
    if char not in _CODES:
        # A backslash that escapes nothing stands for itself, in Python; a newline behind it is no part of the text.
        say("" if char == "\n" else _ESCAPES.get(char, escaped("\\" + char)))
        return
    digits = ""
    for _ in range(_CODES[char]):
        digits += yield from reader.peek()
        reader.at += 1
    if not re.fullmatch(r"[0-9a-fA-F]+", digits) or int(digits, 16) > 0x10FFFF or len(digits) != _CODES[char]:
        raise BrokenCallError
    # Halves of a surrogate pair are written as they are: JSON reads them as Python does not, and as models mean them.
    say(f"\\u{digits}" if char == "u" else escaped(chr(int(digits, 16))))
