"""The wire protocols that the gateway speaks, each one file and one line of this table."""

from __future__ import annotations

from ludus.gateway.dialects import chat
from ludus.gateway.dialects.base import Dialect, ParsedRequest, Refusal, StreamWriter, refusal

DIALECTS: dict[str, Dialect] = {
    "chat": chat.ChatDialect(),
}

__all__ = ["DIALECTS", "Dialect", "ParsedRequest", "Refusal", "StreamWriter", "refusal"]
