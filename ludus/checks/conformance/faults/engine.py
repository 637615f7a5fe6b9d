"""Faults between the engine and the record: the recorded tokens are not the sampled ones.

Knows: the Engine contract.  Knows not: HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ludus.checks.conformance.faults.base import Change, Fault
from ludus.checks.conformance.gated_engine import Around, cut
from ludus.checks.conformance.local_server import ServerParts
from ludus.engines.base import Engine, OnTokens
from ludus.types import Call, Sampled


class _Between(Around):
    """An engine that changes calls and answers; everything else is delegated to the inner engine."""

    def __init__(self, inner: Engine, call: Callable[[Call], Call], sampled: Callable[[Sampled], Sampled]) -> None:
        super().__init__(inner)
        self._call = call
        self._sampled = sampled

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        return self._sampled(await self._inner.generate(self._call(call), on_tokens))


def _same(value: Any) -> Any:
    return value


def _last_changed(sampled: Sampled) -> Sampled:
    return replace(sampled, token_ids=(*sampled.token_ids[:-1], sampled.token_ids[-1] + 1))


def _first_prompt_token_lost(call: Call) -> Call:
    return replace(call, prompt_ids=call.prompt_ids[1:])


def _between(name: str, effect: str, *, call: Change = _same, sampled: Change = _same) -> Fault:
    wrap: Any = partial(_Between, call=call, sampled=sampled)  # the rest of the contract is the inner engine's
    return Fault(name, effect, ServerParts(engine=wrap), ("chat/text", "sessions/records"))


ENGINE_FAULTS = (
    _between("last token not recorded", "the record ends one token early", sampled=lambda sampled: cut(sampled, -1)),
    _between("another token recorded", "the last token of a record is another one", sampled=_last_changed),
    _between("prompt cut", "the engine gets a prompt without its first token", call=_first_prompt_token_lost),
)
