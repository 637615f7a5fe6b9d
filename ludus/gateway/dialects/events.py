"""Server-sent events, as all protocols write them.

Knows: the format of an event.  Knows not: what is in one.
"""

from __future__ import annotations

import pydantic_core

from ludus.gateway.dialects.base import JsonObject


def event(payload: JsonObject, name: str | None = None) -> bytes:
    """One event. name: the event's type, for protocols that send one. None: the event has only data."""
    data = b"data: " + pydantic_core.to_json(payload) + b"\n\n"
    return data if name is None else b"event: " + name.encode() + b"\n" + data
