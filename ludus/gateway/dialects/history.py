"""The history of a request: only its entries that are new are read.

Knows: what a session's earlier requests were read as.  Knows not: what an entry looks like in a protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ludus.gateway.dialects.base import JsonObject, ReadMessages
from ludus.gateway.dialects.fields import as_object, missing, numbered, read_array, wrong_value
from ludus.types import Message

ReadEntry = Callable[[JsonObject, str], tuple[Message, ...]]
"""(entry, path): its messages."""


def read_messages(body: JsonObject, read: ReadMessages, read_entry: ReadEntry) -> tuple[list[Message], int]:
    """The messages under `messages`, where one is needed, and how many entries were not known."""
    entries = read_array(body, "messages")
    if not entries:
        raise missing("messages") if body.get("messages") is None else wrong_value([], "at least one", "messages")
    return read_entries("messages", entries, read, read_entry)


def read_entries(at: str, entries: list[Any], read: ReadMessages, read_entry: ReadEntry) -> tuple[list[Message], int]:
    """The messages of all entries, and how many entries were not known."""
    messages = read.known(entries)
    num_known = len(messages)
    for where, entry in numbered(at, entries, start=num_known):
        messages.append(read_entry(as_object(entry, where), where))
    read.remember(entries, messages)
    return [message for each in messages for message in each], len(entries) - num_known
