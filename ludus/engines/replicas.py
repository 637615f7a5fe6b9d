"""The replicas behind a router: which of them may serve, which rest, in what order new weights reach them.

Knows: engines by number, versions, failures, moments.  Knows not: calls, which replica a call should get.
Invariant: no replica serves whose weights are older than the published version.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from ludus.engines.base import Engine
from ludus.errors import UserError

# A server that starts again needs seconds; asking a dead one now and then costs a failed connection.
FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0
# Of many replicas so large a share takes new weights at a time: four transfers one after the other are still short
# beside a step, and three quarters go on sampling meanwhile.
PUBLISH_SHARE = 0.25
# Health checks in a row without an answer that make a replica count as down. One that is loaded may miss some; one that
# reads new weights may do nothing else for a while.
MOST_SILENT = 3
MOST_SILENT_TAKING_WEIGHTS = 15


@dataclass(slots=True)
class Replica:
    """One engine, and what is known of its state."""

    engine: Engine
    version: int
    num_failures: int = 0
    """In a row."""
    rests_until: float = 0.0
    """time.monotonic() before which it gets a call only if no other can serve."""
    is_up: bool = True
    """Its health checks pass. One that is down gets a call only if no other can serve."""
    num_silent: int = 0
    """Health checks in a row that it did not answer."""
    is_taking_weights: bool = False
    """New weights are on their way; likewise."""
    is_draining: bool = False
    """It gets no more calls."""

    def fail(self) -> None:
        now = time.monotonic()
        if now < self.rests_until:
            return  # all its calls fail at once, and that is one failure
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0**self.num_failures)
        self.num_failures += 1
        self.rests_until = now + rest_s

    def succeed(self) -> None:
        self.num_failures, self.rests_until = 0, 0.0

    def note_health(self, *, is_well: bool | None) -> None:
        """What a health check said. None: nothing."""
        if is_well and not self.is_up:
            self.succeed()
        self.num_silent = self.num_silent + 1 if is_well is None else 0
        most = MOST_SILENT_TAKING_WEIGHTS if self.is_taking_weights else MOST_SILENT
        if is_well is not None or self.num_silent >= most:
            self.is_up = bool(is_well)

    def is_fresh(self, now: float) -> bool:
        """Nothing speaks against sending it a call."""
        return self.is_up and not self.is_taking_weights and self.rests_until <= now


class Replicas:
    """Replicas by number, which is never given twice. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[int, Replica] = {}
        self._next_idx = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._known.values())

    def __contains__(self, idx: int | None) -> bool:
        return idx in self._known

    def __getitem__(self, idx: int) -> Replica:
        return self._known[idx]

    def items(self) -> Sequence[tuple[int, Replica]]:
        return tuple(self._known.items())

    def get(self, idx: int | None) -> Replica | None:
        """None: it has been removed, or `idx` is none."""
        return None if idx is None else self._known.get(idx)

    def add(self, engine: Engine) -> int:
        self._next_idx += 1
        self._known[self._next_idx - 1] = Replica(engine, engine.stats().version)
        return self._next_idx - 1

    def pop(self, idx: int) -> Replica:
        self.check(idx)
        return self._known.pop(idx)

    def check(self, idx: int) -> None:
        """Raises UserError if there is no such replica."""
        if idx not in self._known:
            raise UserError(f"there is no replica {idx}; there are {sorted(self._known)}")

    def serving(self, version: int, tried: Collection[int] = ()) -> list[int]:
        """Those that may serve `version` and are not in `tried`; the first ones are the best to ask if none is
        fresh."""
        serving = [
            (not replica.is_up, replica.is_taking_weights, replica.rests_until, idx)
            for idx, replica in self._known.items()
            if replica.version >= version and not replica.is_draining and idx not in tried
        ]
        return [idx for *_, idx in sorted(serving)]

    def has_fresh(self, version: int, *, beside: int) -> bool:
        """Some other replica than `beside` can take over its calls now."""
        now = time.monotonic()
        return any(self._known[idx].is_fresh(now) for idx in self.serving(version, (beside,)))

    def rest_s(self, version: int) -> float:
        """How long until one that may serve `version` has rested. 1 where none rests: only a try can tell then."""
        now = time.monotonic()
        rests = [self._known[idx].rests_until - now for idx in self.serving(version)]
        return min((rest_s for rest_s in rests if rest_s > 0), default=1.0)

    def waves(self) -> list[tuple[int, ...]]:
        """All of them, in the order in which they take new weights; those of a wave do so at the same time.

        Replicas on one set of tensors must change together. Of the others a quarter at a time, or one.
        """
        sharing = tuple(idx for idx, replica in self._known.items() if replica.engine.shares_weights)
        others = [idx for idx in self._known if idx not in sharing]
        size = max(1, int(len(others) * PUBLISH_SHARE))
        rolling = [tuple(others[start : start + size]) for start in range(0, len(others), size)]
        return [sharing, *rolling] if sharing else rolling


class Bell:
    """Wakes whoever waits for a change, on any event loop. Rung from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ears: set[Ear] = set()

    @contextmanager
    def listening(self) -> Iterator[Ear]:
        """Hears every ring from now on. To be entered before looking at what may change."""
        ear = Ear(asyncio.get_running_loop())
        with self._lock:
            self._ears.add(ear)
        try:
            yield ear
        finally:
            with self._lock:
                self._ears.discard(ear)

    def ring(self) -> None:
        with self._lock:
            for ear in self._ears:
                with suppress(RuntimeError):  # its loop is closed, and nobody waits there
                    ear.loop.call_soon_threadsafe(ear.heard.set)


@dataclass(frozen=True, slots=True, eq=False)
class Ear:
    """One who waits for a bell."""

    loop: asyncio.AbstractEventLoop
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Returns when the bell has rung since the last time, or after `timeout_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.heard.wait(), timeout_s)
        self.heard.clear()
