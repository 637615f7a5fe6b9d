"""Wraps the local engine: counts its tokens, and holds them back so that a case can inspect a partial answer.

Knows: the Engine contract.  Knows not: callers, the content of answers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from ludus.engines.base import Engine, OnTokens
from ludus.processes.notifier import Notifier
from ludus.types import Call, Sampled, TokenChunk


@dataclass(slots=True)
class ObservedCall:
    """A call, and the tokens that were delivered for it."""

    call: Call
    token_ids: list[int] = field(default_factory=list)


class TokenGate:
    """Stops the answers of one session after their first tokens, until it is released. Safe to use from any thread."""

    def __init__(self, num_free: int, changed: Notifier) -> None:
        self.num_free = num_free
        self.was_reached = threading.Event()
        self.was_aborted = threading.Event()
        self.is_released = False
        self._changed = changed

    def release(self) -> None:
        """Let the answers continue."""
        self.is_released = True
        self._changed.notify()


class Around:
    """An engine that delegates everything not defined in it to another one."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class GatedEngine(Around):
    """An Engine that delivers another one's answers token by token."""

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)
        self._observed: defaultdict[str, list[ObservedCall]] = defaultdict(list)
        self._gates: dict[str, TokenGate] = {}
        """By session, as the field below."""
        self._aborted: set[str] = set()
        self._changed = Notifier()
        """Notified when a gate is released or a call aborted."""

    def __repr__(self) -> str:
        return f"GatedEngine({self._inner!r}, sessions={len(self._observed)})"

    def observed(self, session_id: str) -> tuple[ObservedCall, ...]:
        """The calls of a session, in order of arrival."""
        return tuple(self._observed[session_id])

    def hold(self, session_id: str, num_free: int) -> TokenGate:
        """From now on hold every answer of the session after `num_free` tokens, until the gate is released."""
        self._gates[session_id] = TokenGate(num_free, self._changed)
        return self._gates[session_id]

    def forget(self, session_id: str) -> None:
        """Forget the session."""
        self._observed.pop(session_id, None)
        self._gates.pop(session_id, None)

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        observed = ObservedCall(call)
        self._observed[call.session_id].append(observed)
        token_gate = self._gates.get(call.session_id)
        whole = await self._inner.generate(call)
        tokens = zip(whole.token_ids, whole.logprobs, whole.versions, strict=True)
        for num_delivered, (token_id, logprob, version) in enumerate(tokens):
            if token_gate is None:
                await asyncio.sleep(0)  # lets the server send each token before the next
            elif num_delivered == token_gate.num_free:
                await self._wait(token_gate, call.id)
            if call.id in self._aborted:
                if token_gate is not None:
                    token_gate.was_aborted.set()
                return replace(cut(whole, num_delivered), stop_reason="abort", stop_string=None)
            observed.token_ids.append(token_id)
            if on_tokens is not None:
                on_tokens(TokenChunk((token_id,), (logprob,), (version,)))
        return whole

    async def _wait(self, token_gate: TokenGate, call_id: str) -> None:
        """Wait until the gate is released or the call is aborted."""
        with self._changed.listening() as listener:
            token_gate.was_reached.set()
            while not token_gate.is_released and call_id not in self._aborted:
                await listener.wait()

    async def abort(self, call_id: str) -> None:
        self._aborted.add(call_id)
        self._changed.notify()


def cut(whole: Sampled, end: int) -> Sampled:
    """The answer cut to the tokens before `end`, with all values that belong to them."""
    beside = ("token_ids", "logprobs", "versions", "top_logprobs", "kept_ids")
    return replace(whole, **{name: getattr(whole, name)[:end] for name in beside})
