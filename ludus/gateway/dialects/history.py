"""Reads the message history of a request, parsing only the entries that are new, and the text inside an entry.

Knows: how a session's earlier requests were parsed.  Knows not: what an entry looks like in a protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ludus.gateway.dialects.base import JsonObject, ReadMessages
from ludus.gateway.dialects.fields import (
    FieldTable,
    as_object,
    missing,
    no_text,
    numbered,
    read_array,
    require_text,
    wrong_type,
    wrong_value,
)
from ludus.types import Message

ReadEntry = Callable[[JsonObject, str], tuple[Message, ...]]
"""(entry, path): the messages in one entry."""


def read_messages(body: JsonObject, read: ReadMessages, read_entry: ReadEntry) -> tuple[list[Message], int]:
    """The messages under `messages`, of which at least one is required, and how many entries were new."""
    entries = read_array(body, "messages")
    if not entries:
        raise missing("messages") if body.get("messages") is None else wrong_value([], "at least one", "messages")
    return read_entries("messages", entries, read, read_entry)


def read_entries(at: str, entries: list[Any], read: ReadMessages, read_entry: ReadEntry) -> tuple[list[Message], int]:
    """The messages of all entries, and how many entries were new."""
    messages = read.known(entries)
    num_known = len(messages)
    for where, entry in numbered(at, entries, start=num_known):
        messages.append(read_entry(as_object(entry, where), where))
    read.remember(entries, messages)
    return [message for each in messages for message in each], len(entries) - num_known


def read_content(value: Any, param: str, parts: Mapping[str, FieldTable], ignored: dict[str, None]) -> str:
    """Content given as text, or as text parts, which are joined without a separator, as chat templates do it."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise wrong_type(value, "a string or an array of text parts", param)
    texts = []
    for at, entry in numbered(param, value):
        part = as_object(entry, at)
        check_part(part, at, parts, ignored)
        texts.append(require_text(part, "text", at=at))
    return "".join(texts)


def check_part(part: JsonObject, at: str, parts: Mapping[str, FieldTable], ignored: dict[str, None]) -> None:
    """Adds the part's ignored fields to `ignored`. Raises AgentError if its type is none of `parts`."""
    kind = require_text(part, "type", at=at)
    if kind not in parts:
        raise no_text(kind, parts, at)
    ignored.update(dict.fromkeys(parts[kind].check(part, at=at)))
