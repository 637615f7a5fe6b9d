"""The wire protocols that the gateway speaks, each one folder and one line of this table."""

from __future__ import annotations

from collections.abc import Mapping

from ludus.gateway.dialects.base import Dialect
from ludus.gateway.dialects.chat.dialect import CHAT
from ludus.gateway.dialects.completions.dialect import COMPLETIONS
from ludus.gateway.dialects.messages.dialect import MESSAGES
from ludus.gateway.dialects.responses.dialect import RESPONSES

DIALECTS: Mapping[str, Dialect] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "messages": MESSAGES,
    "responses": RESPONSES,
}
