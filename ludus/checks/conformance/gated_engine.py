"""The local engine's tokens: counted, and held back where a case wants to look at an answer half-way.

Knows: the Engine contract.  Knows not: who asks, what is said.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ludus.engines.base import Engine, OnTokens
from ludus.types import Call, Sampled, TokenChunk


@dataclass(slots=True)
class ObservedCall:
    """A call, and the tokens that were handed over for it."""

    call: Call
    token_ids: list[int] = field(default_factory=list)


class TokenGate:
    """Stops the answers of one session after their first tokens, until it is released. Safe to use from any thread."""

    def __init__(self, num_free: int) -> None:
        self.num_free = num_free
        self.was_reached = threading.Event()
        self.was_aborted = threading.Event()
        self._is_released = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = threading.Lock()

    @property
    def is_released(self) -> bool:
        return self._is_released.is_set()

    def release(self) -> None:
        """The answers go on."""
        self._is_released.set()
        self.wake()

    def wake(self) -> None:
        with self._lock:
            for loop, event in self._waiting:
                loop.call_soon_threadsafe(event.set)
            self._waiting.clear()

    async def wait(self) -> None:
        """Returns when the gate is released, or at `wake`."""
        event = asyncio.Event()
        self.was_reached.set()
        with self._lock:
            self._waiting.append((asyncio.get_running_loop(), event))
            if self._is_released.is_set():
                event.set()
        await event.wait()


class Around:
    """An engine around another one, which does whatever is not said here."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class GatedEngine(Around):
    """An Engine whose answers are those of another one, handed over token by token."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self._observed: dict[str, ObservedCall] = {}
        self._gates: dict[str, TokenGate] = {}
        """By session."""
        self._gate_of_call: dict[str, TokenGate] = {}
        """By call: where an abort must look for it."""
        self._aborted: set[str] = set()

    def __repr__(self) -> str:
        return f"GatedEngine({self._inner!r}, observed={len(self._observed)})"

    def observed(self, session_id: str) -> tuple[ObservedCall, ...]:
        """The calls of a session, in order of arrival."""
        return tuple(observed for observed in tuple(self._observed.values()) if observed.call.session_id == session_id)

    def hold(self, session_id: str, token_gate: TokenGate) -> None:
        """From now on `token_gate` holds the answers of the session."""
        self._gates[session_id] = token_gate

    def forget(self, session_id: str) -> None:
        """Nothing is kept of the session."""
        for observed in self.observed(session_id):
            del self._observed[observed.call.id]
        self._gates.pop(session_id, None)

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        self._observed[call.id] = observed = ObservedCall(call)
        token_gate = self._gates.get(call.session_id)
        if token_gate is None:
            return await self._inner.generate(call, lambda chunk: _hand_over(observed, chunk, on_tokens))
        self._gate_of_call[call.id] = token_gate
        try:
            return await self._generate_gated(observed, token_gate, on_tokens)
        finally:
            del self._gate_of_call[call.id]

    async def _generate_gated(
        self, observed: ObservedCall, token_gate: TokenGate, on_tokens: OnTokens | None
    ) -> Sampled:
        call = observed.call
        whole = await self._inner.generate(call)
        for num_delivered, chunk in enumerate(_chunks(whole)):
            if num_delivered == token_gate.num_free and call.id not in self._aborted:
                await token_gate.wait()
            if call.id in self._aborted:
                token_gate.was_aborted.set()
                return _first(whole, num_delivered)
            _hand_over(observed, chunk, on_tokens)
        return whole

    async def abort(self, call_id: str) -> None:
        self._aborted.add(call_id)
        if call_id in self._gate_of_call:
            self._gate_of_call[call_id].wake()
        await self._inner.abort(call_id)


def _hand_over(observed: ObservedCall, chunk: TokenChunk, on_tokens: OnTokens | None) -> None:
    observed.token_ids.extend(chunk.token_ids)
    if on_tokens is not None:
        on_tokens(chunk)


def _chunks(whole: Sampled) -> Iterator[TokenChunk]:
    for token_id, logprob, version in zip(whole.token_ids, whole.logprobs, whole.versions, strict=True):
        yield TokenChunk((token_id,), (logprob,), (version,))


def _first(whole: Sampled, num: int) -> Sampled:
    return replace(
        whole,
        token_ids=whole.token_ids[:num],
        logprobs=whole.logprobs[:num],
        versions=whole.versions[:num],
        top_logprobs=whole.top_logprobs[:num],
        kept_ids=whole.kept_ids[:num],
        stop_reason="abort",
        stop_string=None,
    )
