"""Several engines that serve one model, as one engine.

Knows: the Engine protocol, flights, the policy of `routing.py`.  Knows not: chat, sessions, what the replicas are.
It keeps the contract of `engines/base.py` over replicas that keep it, and adds:

1. A call whose replica fails goes on at another, with the tokens that came.
2. A replica that failed rests, longer each time, and is tried again. One that missed a publish serves nothing until a
   later one has reached it.
3. While `publish` runs no replica samples: those that share their weights would sample with new ones as old ones.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace

from ludus.engines.base import Engine, OnTokens, WeightSource
from ludus.engines.flight import Flight
from ludus.engines.routing import ReplicaLoad, Routing
from ludus.errors import BackendError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, EngineStats, Sampled

logger = logging.getLogger(__name__)

# A server that starts again needs seconds; asking a dead one now and then costs a failed connection.
FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0
# Seeds that the router draws stay exact in JSON and in SQLite, as those of our engine.
_SEED_BITS = 48


@dataclass(slots=True)
class _Replica:
    engine: Engine
    version: int
    num_failures: int = 0
    """In a row."""
    rests_until: float = 0.0
    """time.monotonic() before which it gets a call only if no other can serve."""

    def fail(self) -> None:
        now = time.monotonic()
        if now < self.rests_until:
            return  # all its calls fail at once, and that is one failure
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0**self.num_failures)
        self.num_failures += 1
        self.rests_until = now + rest_s

    def succeed(self) -> None:
        self.num_failures, self.rests_until = 0, 0.0


class RoutedEngine:
    """An engine over replicas. Safe to use from several event loops and threads at once."""

    def __init__(
        self, replicas: Sequence[Engine], *, stop_ids: frozenset[int], seed: int = 0, spill_tokens: int | None = None
    ) -> None:
        """stop_ids: end-of-turn ids of the model. seed: of the seeds that calls without one get. spill_tokens: how
        far a session's or a group's replica may be behind before it gets no more of their calls; see `Routing`.

        The replicas belong to the router from now on: closing it closes them.
        """
        if not replicas:
            raise UserError("a router needs one replica or more")
        self._context_length = min(engine.context_length for engine in replicas)
        self._routing = Routing(context_length=self._context_length, spill_tokens=spill_tokens)
        self._stop_ids = stop_ids
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        """Guards all below, and the routing; never held while awaiting."""
        self._replicas: dict[int, _Replica] = {}
        self._flights: dict[str, Flight] = {}
        self._left: list[EngineStats] = []
        """Of replicas that were removed."""
        self._next_idx = 0
        self._num_calls = 0
        self._num_moved = 0
        self._version = max(engine.stats().version for engine in replicas)
        self._is_paused = False
        self._is_closed = False
        for engine in replicas:
            self._enlist(engine)

    def __repr__(self) -> str:
        return f"RoutedEngine(replicas={len(self._replicas)}, version={self._version}, {self._routing!r})"

    @property
    def context_length(self) -> int:
        """The shortest of the replicas'."""
        return self._context_length

    @property
    def num_moved(self) -> int:
        """How often a call went on at another replica."""
        return self._num_moved

    def loads(self) -> dict[int, ReplicaLoad]:
        """What each replica has to do, by its number."""
        with self._lock:
            return {replica: self._routing.load(replica) for replica in self._routing.replicas}

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        """The answer of one replica, or of several in turn. Raises BackendError when each has failed without a token
        more."""
        flight = self._take_off(call, on_tokens)
        try:
            failure: BackendError | None = None
            while (ended_by := flight.ended_by(self._stop_ids, self._context_length)) is None:
                replica = self._choose(flight, failure)
                try:
                    sampled = await self._visit(flight, replica)
                except BackendError as error:
                    failure = error
                else:
                    if sampled is not None:
                        return sampled
                if flight.has_diverged:
                    raise _diverged(flight)
            return flight.told(ended_by)
        finally:
            with self._lock:
                del self._flights[call.id]

    async def abort(self, call_id: str) -> None:
        with self._lock:
            flight = self._flights.get(call_id)
            if flight is None:
                return
            flight.is_aborted = True
            replica = None if flight.replica is None else self._replicas.get(flight.replica)
        if replica is not None:
            await replica.engine.abort(call_id)

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Raises what the replicas raised if none of them took the weights, or if one cannot take any."""
        if version <= self._version:
            raise UserError(f"version={version} must be greater than the published one, {self._version}")
        await self._each(lambda replica: replica.engine.pause())
        failures = await self._each(lambda replica: replica.engine.publish(version, weights))
        refusal = next((error for error in failures.values() if not isinstance(error, BackendError)), None)
        with self._lock:
            if refusal is None and len(failures) < len(self._replicas):
                self._version = version
                self._routing.forget_prefixes()
                for idx in self._replicas.keys() - failures.keys():
                    self._replicas[idx].version = version
                    self._replicas[idx].succeed()
        await self._evict(failures)
        if not self._is_paused:
            await self._each(lambda replica: replica.engine.resume())
        if refusal is not None or version != self._version:
            raise refusal or next(iter(failures.values()))

    async def pause(self) -> None:
        self._is_paused = True
        await self._each(lambda replica: replica.engine.pause())

    async def resume(self) -> None:
        self._is_paused = False
        await self._each(lambda replica: replica.engine.resume())

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        failure: BackendError | None = None
        for idx in self._usable(frozenset()):
            try:
                return await self._replicas[idx].engine.score(token_ids)
            except BackendError as error:
                failure = error
        raise failure or self._nobody()

    def stats(self) -> EngineStats:
        """Sums over the replicas; a call that was moved counts once."""
        with self._lock:
            parts = [*self._left, *(replica.engine.stats() for replica in self._replicas.values())]
            names = [each.name for each in fields(EngineStats) if each.name not in ("version", "num_calls")]
            sums = {name: sum(getattr(part, name) for part in parts) for name in names}
            return EngineStats(version=self._version, num_calls=self._num_calls, **sums)

    async def close(self) -> None:
        self._is_closed = True
        with self._lock:
            for flight in self._flights.values():
                flight.is_aborted = True
        await asyncio.gather(*(replica.engine.close() for replica in self._replicas.values()))

    async def add(self, engine: Engine) -> int:
        """The number of a new replica, which serves at once if its weights are the newest, else after a publish."""
        if engine.context_length < self._context_length:
            raise UserError(
                f"the new replica's context of {engine.context_length} tokens is shorter than the router's, "
                f"{self._context_length}; make a new router"
            )
        if self._is_paused:
            await engine.pause()
        with self._lock:
            return self._enlist(engine)

    async def remove(self, idx: int) -> Engine:
        """The engine of a replica that serves no more; the calls that ran there go on elsewhere."""
        with self._lock:
            if idx not in self._replicas:
                raise UserError(f"there is no replica {idx}; there are {sorted(self._replicas)}")
            replica = self._replicas.pop(idx)
            self._routing.remove(idx)
            self._left.append(replica.engine.stats())
            running = [flight.call.id for flight in self._flights.values() if flight.replica == idx]
        for call_id in running:
            await replica.engine.abort(call_id)
        return replica.engine

    # ---- one call

    def _take_off(self, call: Call, on_tokens: OnTokens | None) -> Flight:
        with self._lock:
            if self._is_closed:
                raise BackendError("the engine is closed; open a new one")
            if call.id in self._flights:
                raise UserError(f"call id {call.id!r} is running already; every call needs an id of its own")
            flight = Flight(_seeded(call, self._random), on_tokens)
            self._flights[call.id] = flight
            self._num_calls += 1
            return flight

    def _choose(self, flight: Flight, failure: BackendError | None) -> int:
        usable = self._usable(flight.tried)
        if not usable:
            raise failure or self._nobody()
        now = time.monotonic()
        with self._lock:
            fresh = [idx for idx in usable if self._replicas[idx].rests_until <= now]
            return self._routing.choose(flight.call, fresh or usable[:1])

    async def _visit(self, flight: Flight, idx: int) -> Sampled | None:
        """The whole answer. None: the replica gave the call back, or diverged. Raises BackendError if it failed."""
        asked = flight.next_call()
        with self._lock:
            replica = self._replicas[idx]
            self._routing.enter(asked, idx)
            flight.replica = idx
            self._num_moved += flight.num_visits > 0
            flight.num_visits += 1
        try:
            last = await replica.engine.generate(asked, flight.take)
        except BackendError as error:
            self._note_failure(flight, idx, error)
            raise
        finally:
            with self._lock:
                num_prompt = len(asked.prompt_ids) - len(flight.call.prompt_ids)
                self._routing.leave(asked.id, idx, flight.token_ids[num_prompt:])
                flight.replica = None
        gave_back = last.stop_reason == "abort" and not flight.is_aborted and not self._serves(idx)
        if gave_back or flight.has_diverged:
            return None
        replica.succeed()
        return flight.whole(last)

    def _note_failure(self, flight: Flight, idx: int, error: BackendError) -> None:
        flight.tried.add(idx)
        with self._lock:
            replica = self._replicas.get(idx)
            if replica is not None:
                replica.fail()
        logger.warning("replica.failed replica=%d call=%s error=%s", idx, flight.call.id, error)

    # ---- replicas

    def _enlist(self, engine: Engine) -> int:
        idx = self._next_idx
        self._next_idx += 1
        self._replicas[idx] = _Replica(engine, engine.stats().version)
        self._routing.add(idx)
        return idx

    def _serves(self, idx: int) -> bool:
        replica = self._replicas.get(idx)
        return replica is not None and replica.version == self._version

    def _usable(self, tried: frozenset[int] | set[int]) -> list[int]:
        """Replicas with the newest weights that a call has not tried, the one that is rested soonest first."""
        with self._lock:
            usable = [idx for idx in self._replicas if self._serves(idx) and idx not in tried]
            return sorted(usable, key=lambda idx: self._replicas[idx].rests_until)

    async def _each(self, act: Callable[[_Replica], Awaitable[None]]) -> dict[int, Exception]:
        """Has every replica do something at once. Returns what those raised that could not."""
        with self._lock:
            replicas = dict(self._replicas)
        results = await asyncio.gather(*(act(replica) for replica in replicas.values()), return_exceptions=True)
        failures: dict[int, Exception] = {}
        for idx, result in zip(replicas, results, strict=True):
            if isinstance(result, Exception):
                failures[idx] = result
                if isinstance(result, BackendError):
                    replicas[idx].fail()
                logger.warning("replica.failed replica=%d error=%s", idx, result)
            elif result is not None:
                raise result
        return failures

    async def _evict(self, failures: dict[int, Exception]) -> None:
        """The calls of replicas that may not serve go on elsewhere."""
        with self._lock:
            running = [
                (self._replicas[flight.replica].engine, flight.call.id)
                for flight in self._flights.values()
                if flight.replica in failures and not self._serves(flight.replica) and flight.replica in self._replicas
            ]
        for engine, call_id in running:
            try:
                await engine.abort(call_id)
            except BackendError as error:  # it is down: its calls end by themselves
                logger.warning("replica.abort_failed call=%s error=%s", call_id, error)

    def _nobody(self) -> BackendError:
        states = ", ".join(f"{idx} has version {replica.version}" for idx, replica in self._replicas.items())
        return BackendError(f"no replica can serve version {self._version}: {states or 'there is none'}")


def route(replicas: Sequence[Engine], tokenizer: Tokenizer, *, seed: int = 0) -> Engine:
    """The one engine there is, or a router over several."""
    return replicas[0] if len(replicas) == 1 else RoutedEngine(replicas, stop_ids=tokenizer.stop_ids, seed=seed)


def _diverged(flight: Flight) -> BackendError:
    return BackendError(
        f"the replica that sampled call {flight.call.id!r} was lost, and another sampled other tokens in its place; "
        "send the request again"
    )


def _seeded(call: Call, source: random.Random) -> Call:
    if call.sampling.seed is not None:
        return call
    return replace(call, sampling=replace(call.sampling, seed=source.getrandbits(_SEED_BITS)))
