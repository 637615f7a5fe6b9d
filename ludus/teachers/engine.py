"""A scorer that uses engines: servers of a teacher, or the run's own engine.

Knows: the Engine protocol.  Knows not: which kind of engine it is, turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ludus.engines.base import Engine
from ludus.errors import BackendError, UserError
from ludus.processes.gather import gather
from ludus.teachers.base import ScoredPath

logger = logging.getLogger(__name__)

# Paths that one engine is asked for at a time: enough to fill a server's batch, few enough that none waits for minutes.
PATHS_AT_ONCE = 32
# How often all engines are tried, and how long it is waited between: a server that is started again is back by then.
ROUNDS = 4
PAUSE_S = 5.0


class EngineScorer:
    """Distributes paths over engines of one model; if one fails, the next is asked."""

    def __init__(self, engines: Sequence[Engine], name: str, *, is_own: bool, pause_s: float = PAUSE_S) -> None:
        """name: for error messages.  is_own: close the engines with this scorer.  pause_s: between retries."""
        self._engines = tuple(engines)
        self._name = name
        self._is_own = is_own
        self._pause_s = pause_s

    def __repr__(self) -> str:
        return f"<EngineScorer {self._name}, {len(self._engines)} engines>"

    async def score(self, paths: Sequence[ScoredPath]) -> list[tuple[float, ...]]:
        longest = max((len(path.token_ids) for path in paths), default=0)
        room = min(engine.context_length for engine in self._engines)
        if longest > room:
            raise UserError(
                f"{self._name} has a context of {room} tokens, and a conversation to be scored has {longest}; serve it "
                "with a longer one, or bound the conversations with model.context_length"
            )
        numbered = list(enumerate(paths))
        return await gather(self._score_one, numbered, at_once=PATHS_AT_ONCE * len(self._engines))

    async def close(self) -> None:
        if self._is_own:
            await asyncio.gather(*(engine.close() for engine in self._engines))

    async def _score_one(self, numbered: tuple[int, ScoredPath]) -> tuple[float, ...]:
        number, path = numbered
        failure: BackendError | None = None
        for attempt in range(ROUNDS * len(self._engines)):
            if attempt and attempt % len(self._engines) == 0:
                await asyncio.sleep(self._pause_s)
            engine = self._engines[(number + attempt) % len(self._engines)]
            try:
                logprobs = await engine.score(path.token_ids)
            except BackendError as error:
                logger.warning("teacher.failed engine=%r error=%s", engine, error)
                failure = error
            else:
                return tuple(logprobs[index - 1] for index in path.wanted)
        raise BackendError(f"{self._name} did not answer in {ROUNDS} rounds: {failure}") from failure
