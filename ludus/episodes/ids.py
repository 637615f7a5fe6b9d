"""One id for a turn in every protocol: the same digits after the prefix that a protocol's clients expect.

Knows: prefixes.  Knows not: protocols, turns.
"""

from __future__ import annotations

CHAT = "chatcmpl-"
RESPONSE = "resp_"
MESSAGE = "msg_"
COMPLETION = "cmpl-"
PREFIXES = (CHAT, RESPONSE, MESSAGE, COMPLETION)


def shown_id(turn_id: str, prefix: str) -> str:
    """A turn's id as the clients of a protocol see it."""
    return prefix + turn_id.removeprefix(CHAT)


def turn_id_of(shown: str) -> str:
    """The id of the turn that any protocol shows as `shown`; a text that no protocol shows is returned as it is."""
    for prefix in PREFIXES:
        if shown.startswith(prefix):
            return CHAT + shown.removeprefix(prefix)
    return shown
