"""The replicas behind a router: which of them may serve, which back off, and how new weights reach them.

Knows: engines by number, versions, weights, failures, moments.  Knows not: calls, which replica a call should get.
Invariants: no replica serves whose weights are older than the published version; a publish over replicas with weights
of their own never has all of them at once; replicas on one set of tensors change together, paused; nobody joins with
weights that are being replaced.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ludus.engines.base import Engine, WeightSource, check_version
from ludus.errors import BackendError, UserError
from ludus.processes.notifier import Notifier

logger = logging.getLogger(__name__)

# A server that starts again needs seconds; asking a dead one now and then costs a failed connection.
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 60.0
# Of many replicas so large a share takes new weights at a time: four transfers one after the other are still short
# beside a step, and three quarters go on sampling meanwhile.
PUBLISH_SHARE = 0.25
# Health checks in a row without an answer that make a replica count as down. One that is loaded may miss some; one that
# reads new weights may do nothing else for a while.
MOST_SILENT = 3
MOST_SILENT_TAKING_WEIGHTS = 15
# A transfer of weights to one replica; more than the largest models take, less than anybody waits for a dead one.
JOIN_TIMEOUT_S = 600.0
_POLL_S = 1.0  # how often it is checked whether a replica that takes weights is still up
# A server that refused something has just answered, so it says as quickly whether it is well.
_WELL_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Replica:
    """One engine, and what is known of its state."""

    engine: Engine
    version: int
    num_failures: int = 0
    """In a row."""
    last_failure: Exception | None = None
    """Why it could not do the last thing that it was told. None: it could."""
    backs_off_until: float = 0.0
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
        if now < self.backs_off_until:
            return  # all its calls fail at once, and that is one failure
        backoff_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0**self.num_failures)
        self.num_failures += 1
        self.backs_off_until = now + backoff_s

    def succeed(self) -> None:
        self.num_failures, self.backs_off_until, self.last_failure = 0, 0.0, None

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
        return self.is_up and not self.is_taking_weights and self.backs_off_until <= now

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Raises BackendError too if it is found to be down meanwhile, or takes too long: nobody waits for it for
        ever."""
        publishing = asyncio.ensure_future(self.engine.publish(version, weights))
        until = time.monotonic() + JOIN_TIMEOUT_S
        try:
            while not (await asyncio.wait({publishing}, timeout=_POLL_S))[0]:
                if not self.is_up:
                    raise BackendError(f"it went down while it was given version {version}")
                if time.monotonic() >= until:
                    raise BackendError(f"it did not take version {version} within {JOIN_TIMEOUT_S} s")
            publishing.result()
        finally:
            publishing.cancel()

    async def is_well(self, timeout_s: float) -> bool | None:
        """Whether its engine can serve. None: it did not say so in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.engine.check()
        except TimeoutError:
            logger.warning("replica.unresponsive engine=%r timeout_s=%s", self.engine, timeout_s)
            return None
        except BackendError as error:
            logger.warning("replica.down engine=%r error=%s", self.engine, error)
            return False
        return True


class Replicas:
    """Replicas by number, and the version that they are to sample with. Safe to use from several threads."""

    def __init__(self, engines: Sequence[Engine], *, is_patient: bool) -> None:
        """is_patient: where no replica can take new weights, one is waited for that can."""
        self.known: Mapping[int, Replica] = {}
        """Made anew when one comes or goes: whoever goes through it needs no lock. No number is given twice."""
        self.version = max(engine.stats().version for engine in engines)
        self.changed = Notifier()
        """Notified when something may serve that could not before."""
        self._is_patient = is_patient
        self._is_paused = False
        self._lock = threading.Lock()
        """Guards who they are and what is known of each; never held while awaiting."""
        self._publishing = threading.Lock()
        """Held by the one publish or join that there is at a time."""
        self._next_idx = 0
        self._latest: WeightSource | None = None
        """The weights of the version, for replicas that join. None: they were not published here."""
        for engine in engines:
            self.add(engine)

    def add(self, engine: Engine) -> int:
        with self._lock:
            idx, self._next_idx = self._next_idx, self._next_idx + 1
            self.known = {**self.known, idx: Replica(engine, engine.stats().version)}
            return idx

    def remove(self, idx: int) -> Replica:
        with self._lock:
            replica = self[idx]
            self.known = {known: each for known, each in self.known.items() if known != idx}
            return replica

    def __getitem__(self, idx: int) -> Replica:
        """Raises UserError if there is no such replica."""
        if idx not in self.known:
            raise UserError(f"there is no replica {idx}; there are {sorted(self.known)}")
        return self.known[idx]

    def serving(self, tried: Collection[int] = ()) -> dict[int, Replica]:
        """Those that may serve and are not in `tried`; the first ones are the best to ask if none is fresh."""
        serving = {
            idx: replica
            for idx, replica in self.known.items()
            if replica.version >= self.version and not replica.is_draining and idx not in tried
        }

        def preference(idx: int) -> tuple[bool, bool, float, int]:
            replica = serving[idx]
            return not replica.is_up, replica.is_taking_weights, replica.backs_off_until, idx

        return {idx: serving[idx] for idx in sorted(serving, key=preference)}

    def has_fresh(self, *, beside: int) -> bool:
        """Some other replica than `beside` can take over its calls now."""
        now = time.monotonic()
        return any(replica.is_fresh(now) for replica in self.serving((beside,)).values())

    def backoff_s(self) -> float:
        """How long until one that may serve may be tried again. 1 where none backs off: only a try can tell then."""
        now = time.monotonic()
        backoffs = [replica.backs_off_until - now for replica in self.serving().values()]
        return min((backoff_s for backoff_s in backoffs if backoff_s > 0), default=1.0)

    def note_failure(self, replica: Replica) -> None:
        with self._lock:
            replica.fail()

    def publish_batches(self) -> list[tuple[int, ...]]:
        """All of them, in the order in which they take new weights; those of a batch do so at the same time.

        Replicas on one set of tensors must change together. Of the others a quarter at a time, or one.
        """
        known = self.known
        sharing = tuple(idx for idx, replica in known.items() if replica.engine.shares_weights)
        others = [idx for idx in known if idx not in sharing]
        size = max(1, int(len(others) * PUBLISH_SHARE))
        rolling = [tuple(others[start : start + size]) for start in range(0, len(others), size)]
        return [sharing, *rolling] if sharing else rolling

    async def publish(self, version: int, weights: WeightSource) -> dict[int, Exception]:
        """Those that could not take the weights, and why.

        Raises what the replicas raised if one cannot take any weights, or if none took them and none is waited for.
        """
        check_version(version, self.version)
        failures: dict[int, Exception] = {}
        async with self._one_at_a_time():
            for batch in self.publish_batches():
                failures |= await self._publish_to(batch, version, weights)
                refusal = next((error for error in failures.values() if not isinstance(error, BackendError)), None)
                if refusal is not None:
                    raise refusal
            is_taken = any(each.version >= version and not each.is_draining for each in self.known.values())
            if not is_taken and not self._is_patient:
                raise next(iter(failures.values()), self.nobody())
            self.version, self._latest = version, weights
        if not is_taken:
            weights.copy_into_shared()  # as a replica that takes them would have had it done
        self.changed.notify()
        return failures

    async def catch_up(self, able: Collection[int]) -> None:
        """Replicas that missed a publish and are able to now get the newest weights."""
        if self._behind(able):
            async with self._one_at_a_time():
                if self._latest is not None:
                    await self._publish_to(self._behind(able), self.version, self._latest)
            self.changed.notify()

    def _behind(self, able: Collection[int]) -> list[int]:
        if self._latest is None:
            return []
        return [idx for idx, replica in self.known.items() if idx in able and replica.version < self.version]

    async def pause(self) -> None:
        """Raises what a replica raised that has the trainer's card, is well, and keeps it."""
        self._is_paused = True
        await self._check_turn(await self._each(self.known, lambda replica: replica.engine.pause()))

    async def resume(self) -> None:
        """Raises what a replica raised that has the trainer's card, is well, and does not take it back."""
        self._is_paused = False
        await self._check_turn(await self._each(self.known, lambda replica: replica.engine.resume()))

    async def _check_turn(self, failures: Mapping[int, Exception]) -> None:
        """One that is down has left the card, and another that joins in its place is told the same."""
        for idx, failure in failures.items():
            replica = self.known.get(idx)
            if replica is None or not replica.engine.shares_card:
                continue
            if await replica.is_well(_WELL_TIMEOUT_S) is not False:
                raise failure

    @asynccontextmanager
    async def joining(self, engine: Engine) -> AsyncIterator[None]:
        """Within the block the engine has the newest weights, is paused if the others are, and may be added.

        Raises what the engine raised if it could not take the weights.
        """
        async with self._one_at_a_time():
            was_paused = self._is_paused
            if was_paused:
                await engine.pause()
            if self._latest is not None and engine.stats().version < self.version:
                await Replica(engine, engine.stats().version).publish(self.version, self._latest)
            yield
            if self._is_paused != was_paused:  # it was nobody's yet when the others were paused, or went on
                await (engine.pause() if self._is_paused else engine.resume())
        self.changed.notify()

    async def check(self, timeout_s: float) -> tuple[set[int], set[int]]:
        """Asks every replica outside of this process whether it can serve, and notes that, and older weights.

        Returns those that are down and those that are well; who does not answer is neither for a while.
        """
        asked = {idx: replica for idx, replica in self.known.items() if not replica.engine.shares_weights}
        answers = await asyncio.gather(*(replica.is_well(timeout_s) for replica in asked.values()))
        with self._lock:
            for replica, is_well in zip(asked.values(), answers, strict=True):
                replica.note_health(is_well=is_well)
                if not replica.is_taking_weights:  # one that was started again may have lost its weights
                    replica.version = min(replica.version, replica.engine.stats().version)
        self.changed.notify()
        down = {idx for idx, replica in asked.items() if not replica.is_up}
        return down, {idx for idx, is_well in zip(asked, answers, strict=True) if is_well}

    def nobody(self) -> BackendError:
        """No replica can serve: why not."""
        states = ", ".join(
            f"{idx} has version {replica.version}{f' ({replica.last_failure})' if replica.last_failure else ''}"
            for idx, replica in self.known.items()
        )
        return BackendError(f"no replica can serve version {self.version}: {states or 'there is none'}")

    @asynccontextmanager
    async def _one_at_a_time(self) -> AsyncIterator[None]:
        with self.changed.listening() as listener:
            while not self._publishing.acquire(blocking=False):
                await listener.wait()
        try:
            yield
        finally:
            self._publishing.release()
            self.changed.notify()

    async def _publish_to(self, batch: Collection[int], version: int, weights: WeightSource) -> dict[int, Exception]:
        taking = {idx: replica for idx, replica in self.known.items() if idx in batch}
        sharing = {idx: replica for idx, replica in taking.items() if replica.engine.shares_weights}
        for replica in taking.values():
            replica.is_taking_weights = True
        try:
            await self._each(sharing, lambda replica: replica.engine.pause())
            failures = await self._each(taking, lambda replica: replica.publish(version, weights))
            with self._lock:
                for idx in taking.keys() - failures.keys():
                    taking[idx].version = version
                    taking[idx].succeed()
            if not self._is_paused:
                await self._each(sharing, lambda replica: replica.engine.resume())
            return failures
        finally:
            for replica in taking.values():
                replica.is_taking_weights = False

    async def _each(
        self, asked: Mapping[int, Replica], act: Callable[[Replica], Awaitable[None]]
    ) -> dict[int, Exception]:
        """Has replicas do something at once. Returns what those raised that could not, and now back off."""
        results = await asyncio.gather(*(act(replica) for replica in asked.values()), return_exceptions=True)
        failures: dict[int, Exception] = {}
        for idx, result in zip(asked, results, strict=True):
            if isinstance(result, Exception):
                failures[idx] = asked[idx].last_failure = result
                logger.warning("replica.failed replica=%d error=%s", idx, result)
                if isinstance(result, BackendError):
                    self.note_failure(asked[idx])
            elif result is not None:
                raise result
        return failures
