"""Parses and serializes server-sent events.

Knows: the event-stream format.  Knows not: what the events hold.
This parser is stricter than a client's: it refuses input that a server should not send.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `data`: its data lines, joined."""

    data: str
    name: str | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def read_events(text: str) -> list[Event]:
    """The events in `text`; comments are left out.

    Raises ValueError for a line that is no field of the format, or an event without its closing blank line.
    """
    events = []
    *blocks, rest = text.replace("\r\n", "\n").split("\n\n")
    if rest.strip("\n"):
        raise ValueError(f"the stream ends inside an event: {rest!r}")
    for block in blocks:
        fields: dict[str, list[str]] = {"": [], "id": [], "retry": [], "event": [], "data": []}
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            if field not in fields:
                raise ValueError(f"a line of the stream is no field of an event: {line!r}")
            fields[field].append(value.removeprefix(" "))
        if fields["data"]:
            events.append(Event("\n".join(fields["data"]), fields["event"][-1] if fields["event"] else None))
    return events


def write_events(events: Iterable[Event]) -> bytes:
    """`events` on the wire."""
    heads = ((f"event: {event.name}\n" if event.name else "", event.data) for event in events)
    return "".join(f"{head}data: {data}\n\n" for head, data in heads).encode()
