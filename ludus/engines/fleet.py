"""What is done to the replicas behind a router: they are paused, asked for their health, given weights; some join.

Knows: replicas, versions, weights.  Knows not: calls, which replica a call should get.
Invariants: a publish over replicas with weights of their own never has all of them at once; replicas on one set of
tensors change together, paused; nobody joins with weights that are being replaced.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from ludus.engines.base import Engine, WeightSource
from ludus.engines.replicas import Bell, Replica, Replicas
from ludus.errors import BackendError, UserError

logger = logging.getLogger(__name__)

# A transfer of weights to one replica; more than the largest models take, less than anybody waits for a dead one.
JOIN_TIMEOUT_S = 600.0
_LOOK_S = 1.0  # how often one looks whether a replica that takes weights is still up


class Fleet:
    """Replicas, and the version of the weights that they are to sample with. Safe to use from several threads."""

    def __init__(self, engines: Sequence[Engine], lock: threading.Lock, *, is_patient: bool) -> None:
        """lock: guards the replicas' books; never held while awaiting. is_patient: where no replica can take new
        weights, one is waited for that can."""
        self.replicas = Replicas()
        self.version = max(engine.stats().version for engine in engines)
        self.changed = Bell()
        """Rung when something may serve that could not before."""
        self.is_paused = False
        self._lock = lock
        self._is_patient = is_patient
        self._latest: WeightSource | None = None
        """The weights of the version, for replicas that join. None: they were not published here."""
        self._hands_out = False

    def all(self) -> dict[int, Replica]:
        with self._lock:
            return dict(self.replicas.items())

    def serving(self, tried: Collection[int] = ()) -> list[int]:
        """Those that may serve and are not in `tried`; see `Replicas.serving`."""
        with self._lock:
            return self.replicas.serving(self.version, tried)

    async def publish(self, version: int, weights: WeightSource) -> dict[int, Exception]:
        """Those that could not take the weights, and why.

        Raises what the replicas raised if one cannot take any weights, or if none took them and none is waited for.
        """
        if version <= self.version:
            raise UserError(f"version={version} must be greater than the published one, {self.version}")
        failures: dict[int, Exception] = {}
        async with self._handing_out():
            with self._lock:
                waves = self.replicas.waves()
            for wave in waves:
                failures |= await self._hand_out(wave, version, weights)
                refusal = next((error for error in failures.values() if not isinstance(error, BackendError)), None)
                if refusal is not None:
                    raise refusal
            with self._lock:
                is_taken = bool(self.replicas.serving(version))
                if is_taken or self._is_patient:
                    self.version, self._latest = version, weights
        if version != self.version:
            raise next(iter(failures.values()), self.nobody())
        if not is_taken:
            weights.copy_into_shared()  # as a replica that takes them would have had it done
        self.changed.ring()
        return failures

    async def catch_up(self, able: Collection[int]) -> None:
        """Replicas that missed a publish and are able to now get the newest weights."""
        if any(self._is_behind(idx) for idx in able):
            async with self._handing_out():
                behind = [idx for idx in able if self._is_behind(idx)]
                if self._latest is not None:
                    await self._hand_out(behind, self.version, self._latest)
            self.changed.ring()

    async def pause(self) -> None:
        self.is_paused = True
        await self._each(self.all(), lambda replica: replica.engine.pause())

    async def resume(self) -> None:
        self.is_paused = False
        await self._each(self.all(), lambda replica: replica.engine.resume())

    @asynccontextmanager
    async def joining(self, engine: Engine) -> AsyncIterator[None]:
        """Within the block the engine has the newest weights, is paused if the others are, and may be enlisted.

        Raises what the engine raised if it could not take the weights.
        """
        async with self._handing_out():
            if self.is_paused:
                await engine.pause()
            if self._latest is not None and engine.stats().version < self.version:
                try:
                    async with asyncio.timeout(JOIN_TIMEOUT_S):
                        await engine.publish(self.version, self._latest)
                except TimeoutError:
                    raise BackendError(f"it did not take version {self.version} within {JOIN_TIMEOUT_S} s") from None
            yield
        self.changed.ring()

    async def check(self, timeout_s: float) -> tuple[set[int], set[int]]:
        """Asks every replica outside of this process whether it can serve, and notes that, and older weights.

        Returns those that are down and those that are well; who does not answer is neither for a while.
        """
        asked = {idx: replica for idx, replica in self.all().items() if not replica.engine.shares_weights}
        answers = await asyncio.gather(*(_is_well(replica, timeout_s) for replica in asked.values()))
        with self._lock:
            for replica, is_well in zip(asked.values(), answers, strict=True):
                replica.note_health(is_well=is_well)
                if not replica.is_taking_weights:  # one that was started again may have lost its weights
                    replica.version = min(replica.version, replica.engine.stats().version)
        self.changed.ring()
        down = {idx for idx, replica in asked.items() if not replica.is_up}
        return down, {idx for idx, is_well in zip(asked, answers, strict=True) if is_well}

    def nobody(self) -> BackendError:
        """No replica can serve: why not."""
        states = ", ".join(f"{idx} has version {replica.version}" for idx, replica in self.all().items())
        return BackendError(f"no replica can serve version {self.version}: {states or 'there is none'}")

    @asynccontextmanager
    async def _handing_out(self) -> AsyncIterator[None]:
        """One publish or join at a time."""
        with self.changed.listening() as ear:
            while True:
                with self._lock:
                    if not self._hands_out:
                        self._hands_out = True
                        break
                await ear.wait()
        try:
            yield
        finally:
            self._hands_out = False
            self.changed.ring()

    async def _hand_out(self, wave: Collection[int], version: int, weights: WeightSource) -> dict[int, Exception]:
        with self._lock:
            taking = {idx: self.replicas[idx] for idx in wave if idx in self.replicas}
            sharing = {idx: replica for idx, replica in taking.items() if replica.engine.shares_weights}
            for replica in taking.values():
                replica.is_taking_weights = True
        try:
            await self._each(sharing, lambda replica: replica.engine.pause())
            failures = await self._each(taking, lambda replica: _publish(replica, version, weights))
            with self._lock:
                for idx in taking.keys() - failures.keys():
                    taking[idx].version = version
                    taking[idx].succeed()
            if not self.is_paused:
                await self._each(sharing, lambda replica: replica.engine.resume())
            return failures
        finally:
            for replica in taking.values():
                replica.is_taking_weights = False

    async def _each(
        self, asked: Mapping[int, Replica], act: Callable[[Replica], Awaitable[None]]
    ) -> dict[int, Exception]:
        """As `_ask_each`; those that failed rest."""
        failures = await _ask_each(asked, act)
        with self._lock:
            for idx, error in failures.items():
                if isinstance(error, BackendError):
                    asked[idx].fail()
        return failures

    def _is_behind(self, idx: int) -> bool:
        with self._lock:
            replica = self.replicas.get(idx)
            return self._latest is not None and replica is not None and replica.version < self.version


async def _ask_each(asked: Mapping[int, Replica], act: Callable[[Replica], Awaitable[None]]) -> dict[int, Exception]:
    """Has replicas do something at once. Returns what those raised that could not."""
    results = await asyncio.gather(*(act(replica) for replica in asked.values()), return_exceptions=True)
    failures: dict[int, Exception] = {}
    for idx, result in zip(asked, results, strict=True):
        if isinstance(result, Exception):
            failures[idx] = result
            logger.warning("replica.failed replica=%d error=%s", idx, result)
        elif result is not None:
            raise result
    return failures


async def _publish(replica: Replica, version: int, weights: WeightSource) -> None:
    """Raises BackendError too if the replica is found to be down meanwhile, or takes too long: nobody waits for it for
    ever."""
    publishing = asyncio.ensure_future(replica.engine.publish(version, weights))
    until = time.monotonic() + JOIN_TIMEOUT_S
    try:
        while not (await asyncio.wait({publishing}, timeout=_LOOK_S))[0]:
            if not replica.is_up:
                raise BackendError(f"it went down while it was given version {version}")
            if time.monotonic() >= until:
                raise BackendError(f"it did not take version {version} within {JOIN_TIMEOUT_S} s")
        publishing.result()
    finally:
        publishing.cancel()


async def _is_well(replica: Replica, timeout_s: float) -> bool | None:
    """Whether its engine can serve. None: it did not say so in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await replica.engine.check()
    except TimeoutError:
        logger.warning("replica.silent engine=%r timeout_s=%s", replica.engine, timeout_s)
        return None
    except BackendError as error:
        logger.warning("replica.down engine=%r error=%s", replica.engine, error)
        return False
    return True
