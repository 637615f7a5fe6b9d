"""Recognises retries: the same key with the same body is the same request sent again, never a second sample.

Knows: keys, and the results of their requests.  Knows not: how a request is answered.
Invariant: a key belongs to one body. Messages are kept as they are, since a session's requests share them; of the rest
only a digest is kept.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Generic, TypeVar

from ludus.errors import AgentError
from ludus.types import ChatRequest, Message

LedTo = TypeVar("LedTo")


@dataclass(slots=True)
class _Entry(Generic[LedTo]):
    messages: tuple[Message, ...]
    rest: bytes
    """Digest of the rest of the request."""
    led_to: LedTo


class RetryCache(Generic[LedTo]):
    """Remembers the result of a request by its key: first the completion in flight, later the finished turns.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[LedTo]] = {}

    def find(self, request: ChatRequest) -> LedTo | None:
        """The result of the same request. None: it has no key, or comes for the first time.

        Raises AgentError 409 `idempotency_mismatch` if the key came with another body before.
        """
        if request.retry_key is None or request.retry_key not in self._entries:
            return None
        entry = self._entries[request.retry_key]
        if entry.messages != request.messages or entry.rest != _digest_of_rest(request):
            raise AgentError(
                f"the retry key {request.retry_key!r} came before with another body; send a new key with a new request",
                status=409,
                code="idempotency_mismatch",
            )
        return entry.led_to

    def enter(self, request: ChatRequest, led_to: LedTo) -> None:
        """Remember a result; a request without a key is not remembered."""
        if request.retry_key is not None:
            self._entries[request.retry_key] = _Entry(request.messages, _digest_of_rest(request), led_to)

    def replace(self, request: ChatRequest, led_to: LedTo | None) -> None:
        """Replace the remembered result.

        led_to: None: it cannot be given again (it was aborted or failed), so the next request with the key starts anew.
        """
        if request.retry_key is not None and led_to is None:
            del self._entries[request.retry_key]
        elif request.retry_key is not None and led_to is not None:
            self._entries[request.retry_key].led_to = led_to


def _digest_of_rest(request: ChatRequest) -> bytes:
    body = json.dumps(asdict(replace(request, messages=())), sort_keys=True, default=repr)
    return hashlib.blake2b(body.encode(), digest_size=16).digest()
