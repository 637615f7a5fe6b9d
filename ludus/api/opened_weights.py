"""Several weights of one model in this process, each with an engine and a recorder of its own.

Knows: how an engine is put on weights, which were used last.  Knows not: names of weights, files, sessions.
Invariants: at most `MOST_OPEN` are held, except that those that are answering are never closed; all of them take turns
on the same cores.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ludus.engines.base import Engine
from ludus.engines.kind import LocalKind, kind_of
from ludus.engines.lease import ComputeLease
from ludus.engines.settings import EngineSettings
from ludus.engines.weights import LoadedWeights
from ludus.episodes.names import ModelNames
from ludus.episodes.recorder import Recorder
from ludus.text.chat import ChatText

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

MOST_OPEN = 2  # each holds the model once more; two players of a game, or two answers side by side, need two
_LOOK_S = 0.02  # between two looks at the lock; opening weights takes seconds
KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(eq=False)
class Opened:
    """Weights that are loaded and can answer."""

    engine: Engine
    recorder: Recorder
    text: ChatText
    asked_at: float
    """By the monotonic clock."""

    @property
    def is_idle(self) -> bool:
        stats = self.engine.stats()
        return stats.num_running + stats.num_waiting == 0


class OpenedWeights(Generic[KeyT]):
    """Loaded weights by key, the least recently used closed first. Safe to use from several event loops and threads."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        lease: ComputeLease,
        seed: int,
        on_close: Callable[[Opened], Awaitable[object]] | None = None,
    ) -> None:
        """settings: of a local engine.  on_close: awaited before an engine is closed. None: nothing is."""
        self._settings = settings
        self._lease = lease
        self._seed = seed
        self._on_close = on_close
        self._opened: dict[KeyT, Opened] = {}
        """The most recently used comes last."""
        self._opening = threading.Lock()
        """Held while weights are opened or closed, whichever event loop does it."""

    def __repr__(self) -> str:
        return f"OpenedWeights({list(self._opened)})"

    def __contains__(self, key: KeyT) -> bool:
        return key in self._opened

    async def get(
        self, key: KeyT, load: Callable[[], tuple[LoadedModel, ChatText]], *, name: str, version: int
    ) -> Opened:
        """The weights of the key, loaded if need be. load: called on a thread.  name: what requests call them."""
        async with self._alone():
            if key not in self._opened:
                await self._close_all_but(MOST_OPEN - 1)  # first, so that never more are in memory at once
                opening = asyncio.ensure_future(self._open(load, name, version))
                try:
                    await asyncio.shield(opening)
                finally:  # if the caller is cancelled, the weights are kept all the same
                    await asyncio.wait([opening])
                    if opening.exception() is None:
                        self._opened[key] = opening.result()
            self._opened[key] = opened = self._opened.pop(key)
            opened.asked_at = time.monotonic()
            return opened

    async def close_idle(self, idle_s: float) -> None:
        """Close those that were not used for `idle_s`."""
        async with self._alone():
            for key, opened in list(self._opened.items()):
                if opened.is_idle and time.monotonic() - opened.asked_at >= idle_s:
                    await self._close(key)

    async def close(self) -> None:
        async with self._alone():
            while self._opened:
                await self._close(next(iter(self._opened)))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        while not self._opening.acquire(blocking=False):  # noqa: ASYNC110  (no event reaches across loops)
            await asyncio.sleep(_LOOK_S)
        try:
            yield
        finally:
            self._opening.release()

    async def _open(self, load: Callable[[], tuple[LoadedModel, ChatText]], name: str, version: int) -> Opened:
        kind = kind_of(self._settings)
        assert isinstance(kind, LocalKind), "engines elsewhere have the newest weights alone"

        def made() -> tuple[LoadedModel, ChatText, Engine]:
            model, text = load()
            options = {"lease": self._lease, "seed": self._seed}
            return model, text, kind.open(model, text.tokenizer, self._settings, **options)

        model, text, engine = await asyncio.to_thread(made)
        if version:
            await engine.publish(version, LoadedWeights(model))
        return Opened(engine, Recorder(engine, text, names=ModelNames(name)), text, time.monotonic())

    async def _close_all_but(self, most: int) -> None:
        for key in list(self._opened)[: max(0, len(self._opened) - most)]:
            if self._opened[key].is_idle:
                await self._close(key)

    async def _close(self, key: KeyT) -> None:
        opened = self._opened.pop(key)
        if self._on_close is not None:
            await self._on_close(opened)
        await opened.engine.close()
