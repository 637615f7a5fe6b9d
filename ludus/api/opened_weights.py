"""Several weights of one model in this process, each with an engine and what records its answers.

Knows: how an engine is put on weights, which were asked for last.  Knows not: names of weights, files, sessions.
Invariants: at most so many are held at once, but for those that are just answering; all take turns on the same cores.
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

MOST_OPEN = 2  # each holds the model once more; a game of two, and two answers side by side, need as many
_LOOK_S = 0.02  # between two looks whether another has finished opening, which takes seconds
KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(eq=False)
class Opened:
    """Weights that answer."""

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
    """By key. Safe to use from several event loops and threads."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        lease: ComputeLease,
        seed: int,
        on_close: Callable[[Opened], Awaitable[object]] | None = None,
    ) -> None:
        """settings: of a local engine.  on_close: called before an engine is closed. None: nobody is told."""
        self._settings = settings
        self._lease = lease
        self._seed = seed
        self._on_close = on_close
        self._opened: dict[KeyT, Opened] = {}
        """The one that was asked last comes last."""
        self._opening = threading.Lock()
        """Held while weights are opened or closed, on whichever loop."""

    def __repr__(self) -> str:
        return f"OpenedWeights({list(self._opened)})"

    def __contains__(self, key: KeyT) -> bool:
        return key in self._opened

    async def get(
        self, key: KeyT, load: Callable[[], tuple[LoadedModel, ChatText]], *, name: str, version: int
    ) -> Opened:
        """Those of the key, which may take their loading. load: called on a thread.  name: what requests call them."""
        async with self._alone():
            if key not in self._opened:
                await self._close_all_but(MOST_OPEN - 1)  # before: memory is to hold so many at once, and no more
                opening = asyncio.ensure_future(self._open(load, name, version))
                try:
                    await asyncio.shield(opening)
                finally:  # who asked may have left: what is opened is held all the same
                    await asyncio.wait([opening])
                    if opening.exception() is None:
                        self._opened[key] = opening.result()
            self._opened[key] = opened = self._opened.pop(key)
            opened.asked_at = time.monotonic()
            return opened

    async def close_idle(self, idle_s: float) -> None:
        """Those that nobody has asked for so long."""
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
