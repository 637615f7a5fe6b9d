"""Retries of a request: the same key with the same body is one request sent twice, never a second sample.

Knows: keys, and what a request that came under one led to.  Knows not: how a request is answered.
Invariant: a key stands for one body. Messages are kept as they are, since a session's requests share them; of the rest
there is a digest.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Generic, TypeVar

from ludus.errors import AgentError
from ludus.types import ChatRequest, Message

Outcome = TypeVar("Outcome")


@dataclass(slots=True)
class _Entry(Generic[Outcome]):
    messages: tuple[Message, ...]
    rest: bytes
    """Digest of everything else that was asked."""
    outcome: Outcome


class RetryBook(Generic[Outcome]):
    """Remembers by key what a request led to: first the run in flight, later its finished turns. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[Outcome]] = {}

    def __repr__(self) -> str:
        return f"RetryBook(keys={len(self._entries)})"

    def find(self, request: ChatRequest) -> Outcome | None:
        """What the same request led to; None if it has no key or comes for the first time.

        Raises AgentError 409 `idempotency_mismatch` if its key came with another body.
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
        return entry.outcome

    def enter(self, request: ChatRequest, outcome: Outcome) -> None:
        """Remembers `outcome`; a request without a key is not remembered."""
        if request.retry_key is not None:
            self._entries[request.retry_key] = _Entry(request.messages, _digest_of_rest(request), outcome)

    def replace(self, request: ChatRequest, old: Outcome, new: Outcome) -> None:
        """The request that stood at `old` now stands at `new`; nothing happens if it was entered anew meanwhile."""
        entry = self._entries.get(str(request.retry_key))
        if entry is not None and entry.outcome is old:
            entry.outcome = new

    def forget(self, request: ChatRequest, outcome: Outcome) -> None:
        """`outcome` can not be given again (it was aborted or failed): the next request with the key starts anew."""
        entry = self._entries.get(str(request.retry_key))
        if entry is not None and entry.outcome is outcome:
            del self._entries[str(request.retry_key)]


def _digest_of_rest(request: ChatRequest) -> bytes:
    body = json.dumps(asdict(replace(request, messages=())), sort_keys=True, default=repr)
    return hashlib.blake2b(body.encode(), digest_size=16).digest()
