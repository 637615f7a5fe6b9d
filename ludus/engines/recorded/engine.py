"""An engine that samples nothing: its answers were given long ago, and are in a run's record.

Knows: the Engine protocol, the lease.  Knows not: records, models.
Invariant: what is published is rounded into the tensors that are trained, as by an engine that samples with them: with
minibatches and references the next step begins with these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ludus.engines.base import OnTokens, WeightSource, check_version
from ludus.engines.kind import LocalKind
from ludus.engines.lease import ComputeLease
from ludus.errors import UserError
from ludus.types import Call, EngineStats, Sampled

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

_LEASE_NAME = "engine"
_NOTHING = (
    "engine.kind=recorded samples nothing: it is for trainings that are replayed from their record (ludus replay); "
    "choose another kind to play"
)


class RecordedEngine:
    """Takes weights. On one event loop."""

    shares_weights = True
    shares_card = False

    def __init__(
        self, model: LoadedModel, _tokenizer: object, _settings: object, *, lease: ComputeLease, seed: int
    ) -> None:
        """As `LocalKind.open` asks for it."""
        self.context_length = model.config.context_length
        self._lease = lease
        self._version = 0

    def __repr__(self) -> str:
        return f"RecordedEngine(version={self._version})"

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        raise UserError(_NOTHING)

    async def abort(self, call_id: str) -> None:
        """There is no call."""

    async def publish(self, version: int, weights: WeightSource) -> None:
        check_version(version, self._version)
        await asyncio.to_thread(self._take, weights)
        self._version = version

    def _take(self, weights: WeightSource) -> None:
        with self._lease.hold(_LEASE_NAME):
            weights.copy_into_shared()

    async def pause(self) -> None:
        """Nothing is being sampled."""

    async def resume(self) -> None:
        """Likewise."""

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        raise UserError(_NOTHING)

    def stats(self) -> EngineStats:
        return EngineStats(version=self._version)

    async def check(self) -> None:
        """It can always do what it does."""

    async def close(self) -> None:
        """It holds nothing."""


KIND = LocalKind(RecordedEngine)
