"""Several engines that serve one model, as one engine.

Knows: the Engine protocol, calls on their way, replicas, `Routing`.  Knows not: chat, sessions, what the replicas are.
It keeps the contract of `engines/base.py` over replicas that keep it, and adds:

1. A call whose replica fails, gives it back or is taken away goes on at another, with the tokens that came.
2. A replica that failed backs off, longer each time. One that missed a publish serves nothing until it
   has the newest weights.
3. While `publish` runs, replicas that share their weights sample nothing: they would sample with new ones as old ones.
   Those with weights of their own take turns, and most of them go on.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import fields, replace

from ludus.engines.base import Engine, OnTokens, WeightSource, check_call_id
from ludus.engines.routed.policy import ReplicaLoad, Routing
from ludus.engines.routed.replicas import Replicas
from ludus.engines.routed.routed_call import RoutedCall
from ludus.errors import BackendError, UserError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, EngineStats, Sampled

logger = logging.getLogger(__name__)

# How often replicas are asked for their health, and how long they have to answer. One that is gone is seen after this
# long; one that hangs after a few times.
CHECK_S = 4.0
# A call that is taken away from a replica may only just be on its way there: it is asked again so often, for so long.
AGAIN_S = 0.05
LEAVE_S = 10.0
# Seeds that the router draws stay exact in JSON and in SQLite, as those of our engine.
_SEED_BITS = 48


class RoutedEngine:
    """An engine over replicas. Safe to use from several event loops and threads at once."""

    def __init__(
        self, replicas: Sequence[Engine], *, stop_ids: frozenset[int], seed: int = 0, patience_s: float = 0.0
    ) -> None:
        """stop_ids: end-of-turn ids of the model. seed: of the seeds that calls without one get.
        patience_s: how long a call that no replica can serve waits for one that recovers or joins.

        The replicas belong to the router from now on: closing it closes them.
        """
        if not replicas:
            raise UserError("a router needs one replica or more")
        self.context_length = min(engine.context_length for engine in replicas)
        """The shortest of the replicas'."""
        self.shares_card = any(engine.shares_card for engine in replicas)
        self._routing = Routing(context_length=self.context_length)
        self._stop_ids = stop_ids
        self._patience_s = patience_s
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        """Guards all below, the routing, and who the replicas are; never held while awaiting."""
        self._replicas = Replicas(replicas, is_patient=patience_s > 0)
        self._changed = self._replicas.changed
        self._calls: dict[str, RoutedCall] = {}
        self._leaving: dict[int, Engine] = {}
        """Their calls are being moved."""
        self._left: list[EngineStats] = []
        """Counters of replicas that were removed."""
        self._num_calls = 0
        self.num_moved = 0
        """How often a call went on at another replica."""
        self._is_closed = False
        for idx in self._replicas.known:
            self._routing.add(idx)

    def __repr__(self) -> str:
        num, version = len(self._replicas.known), self._replicas.version
        return f"RoutedEngine(replicas={num}, version={version}, {self._routing!r})"

    @property
    def shares_weights(self) -> bool:
        return any(replica.engine.shares_weights for replica in self._replicas.known.values())

    def loads(self) -> dict[int, ReplicaLoad]:
        """What each replica has to do, by its number."""
        with self._lock:
            return {replica: self._routing.load(replica) for replica in self._routing.replicas}

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        """The answer of one replica, or of several in turn. Raises BackendError when each has failed without a token
        more, and none could be waited for."""
        routed = self._begin(call, on_tokens)
        try:
            failure: BackendError | None = None
            while (ended_by := routed.ended_by(self._stop_ids, self.context_length)) is None:
                idx = await self._next_replica(routed, failure)
                if idx is None:
                    continue
                try:
                    sampled = await self._visit(routed, idx)
                except BackendError as error:
                    failure = error
                else:
                    if sampled is not None:
                        return sampled
                if routed.has_diverged:
                    raise BackendError(
                        f"the replica that sampled call {call.id!r} was lost, and another sampled other tokens in its "
                        "place; send the request again"
                    )
            return routed.delivered(ended_by)
        finally:
            with self._lock:
                del self._calls[call.id]

    async def abort(self, call_id: str) -> None:
        with self._lock:
            routed = self._calls.get(call_id)
            if routed is None:
                return
            routed.is_aborted = True
            replica = None if routed.replica is None else self._replicas.known.get(routed.replica)
        self._changed.notify()
        if replica is not None:
            await replica.engine.abort(call_id)

    async def publish(self, version: int, weights: WeightSource) -> None:
        """Raises what the replicas raised if one cannot take any weights, or if none took them and none is waited
        for."""
        failures = await self._replicas.publish(version, weights)
        with self._lock:
            for idx in self._routing.replicas:
                self._routing.forget_prefixes(idx)
        await self._recall(failures)

    async def pause(self) -> None:
        await self._replicas.pause()

    async def resume(self) -> None:
        await self._replicas.resume()

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        failure = self._replicas.nobody()
        for replica in self._replicas.serving().values():
            try:
                return await replica.engine.score(token_ids)
            except BackendError as error:
                failure = error
        raise failure

    def stats(self) -> EngineStats:
        """Sums over the replicas; a call that was moved counts once."""
        with self._lock:
            engines = [*self._leaving.values(), *(replica.engine for replica in self._replicas.known.values())]
            parts = [*self._left, *(engine.stats() for engine in engines)]
            names = [each.name for each in fields(EngineStats) if each.name not in ("version", "num_calls")]
            sums = {name: sum(getattr(part, name) for part in parts) for name in names}
            return EngineStats(version=self._replicas.version, num_calls=self._num_calls, **sums)

    async def check(self) -> None:
        """Asks every replica. Raises BackendError if none can serve."""
        down = set() if self._is_closed else await self.check_replicas()
        if self._is_closed or not self._replicas.serving().keys() - down:
            raise self._replicas.nobody()

    async def close(self) -> None:
        self._is_closed = True
        with self._lock:
            for routed in self._calls.values():
                routed.is_aborted = True
        self._changed.notify()
        await asyncio.gather(*(replica.engine.close() for replica in self._replicas.known.values()))

    # ---- replicas that come and go

    async def add(self, engine: Engine) -> int:
        """The number of a new replica. It gets the newest weights first if it has older ones; where they were not
        published through this router, it serves after the next publish.

        Raises what the engine raised if it could not take them; then it is no replica.
        """
        if engine.context_length < self.context_length:
            raise UserError(
                f"the new replica's context of {engine.context_length} tokens is shorter than the router's, "
                f"{self.context_length}; make a new router"
            )
        async with self._replicas.joining(engine):
            with self._lock:
                idx = self._replicas.add(engine)
                self._routing.add(idx)
        logger.info("replica.joined replica=%d", idx)
        return idx

    async def drain(self, idx: int, *, timeout_s: float | None = None) -> Engine:
        """The engine of a replica that gets no more calls, once those that run there have ended. timeout_s: what runs
        longer goes on elsewhere. None: there is time."""
        self._replicas[idx].is_draining = True
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed.listening() as listener:
            while self._calls_at(idx) and (until is None or time.monotonic() < until):
                await listener.wait(None if until is None else max(0.0, until - time.monotonic()))
        return await self.remove(idx)

    async def remove(self, idx: int) -> Engine:
        """The engine of a replica that serves no more; the calls that ran there go on elsewhere."""
        with self._lock:
            engine = self._leaving[idx] = self._replicas.remove(idx).engine
            self._routing.remove(idx)
        try:
            await self._take_away(idx, engine)
        finally:
            with self._lock:
                gauges = ("num_running", "num_waiting", "num_stale_kv_tokens", "num_pages", "num_free_pages")
                self._left.append(replace(self._leaving.pop(idx).stats(), **dict.fromkeys(gauges, 0)))
        logger.info("replica.left replica=%d", idx)
        return engine

    async def check_replicas(self, timeout_s: float = CHECK_S) -> set[int]:
        """Asks every replica outside of this process whether it can serve, and returns those that are down. They get
        calls again when they can, or no other can; what runs there goes on elsewhere. Those that missed a publish and
        are well have the newest weights when this returns."""
        down, well = await self._look(timeout_s)
        await self._replicas.catch_up(well)
        return down

    @asynccontextmanager
    async def checked(self, every_s: float = CHECK_S) -> AsyncIterator[None]:
        """Within the block the health of every replica is looked at all the time, also while one catches up."""

        async def keep_checking() -> None:
            catching_up: asyncio.Task[None] | None = None
            async with asyncio.TaskGroup() as group:
                while True:
                    await asyncio.sleep(every_s)
                    _, well = await self._look(every_s)
                    # Never waited for here: only a health check finds that a replica which takes weights hangs.
                    if catching_up is None or catching_up.done():
                        catching_up = group.create_task(self._replicas.catch_up(well))

        # no task group: it would wrap what the block raises
        checking = asyncio.create_task(keep_checking(), name="replica checks")
        try:
            yield
        finally:
            checking.cancel()
            with suppress(asyncio.CancelledError):
                await checking

    async def _look(self, timeout_s: float) -> tuple[set[int], set[int]]:
        """Those that are down, whose calls go on elsewhere, and those that are well."""
        down, well = await self._replicas.check(timeout_s)
        await self._recall(down)
        return down, well

    async def _recall(self, failures: Collection[int]) -> None:
        """The calls of replicas that failed go on elsewhere, if these may not serve any more or others can."""
        lost = [
            (idx, replica.engine)
            for idx, replica in self._replicas.known.items()
            if idx in failures and (replica.version < self._replicas.version or self._replicas.has_fresh(beside=idx))
        ]
        await asyncio.gather(*(self._take_away(idx, engine) for idx, engine in lost))

    def _calls_at(self, idx: int) -> list[RoutedCall]:
        with self._lock:
            return [routed for routed in self._calls.values() if routed.replica == idx]

    async def _take_away(self, idx: int, engine: Engine) -> None:
        """The calls of a replica go on elsewhere; returns when they have left."""
        until = time.monotonic() + LEAVE_S
        with self._changed.listening() as listener:
            while calls := self._calls_at(idx):
                if time.monotonic() >= until:
                    logger.warning("replica.drain_timeout replica=%d calls=%d", idx, len(calls))
                    return
                for routed in calls:
                    routed.is_recalled = True
                    try:
                        await engine.abort(routed.call.id)
                    except BackendError as error:  # it is down: its calls end by themselves
                        logger.warning("replica.abort_failed call=%s error=%s", routed.call.id, error)
                await listener.wait(AGAIN_S)

    # ---- one call

    def _begin(self, call: Call, on_tokens: OnTokens | None) -> RoutedCall:
        with self._lock:
            if self._is_closed:
                raise BackendError("the engine is closed; open a new one")
            check_call_id(call.id, self._calls)
            if call.sampling.seed is None:
                call = replace(call, sampling=replace(call.sampling, seed=self._random.getrandbits(_SEED_BITS)))
            routed = self._calls[call.id] = RoutedCall(call, on_tokens)
            self._num_calls += 1
            return routed

    async def _next_replica(self, routed: RoutedCall, failure: BackendError | None) -> int | None:
        """The replica that the call goes to next. None: there was none, and something has changed since.

        Raises `failure`, or that there is nobody, when the call has waited long enough.
        """
        with self._changed.listening() as listener:
            idx = self._choose(routed)
            left_s = routed.left_s(self._patience_s) if idx is None else 0.0
            if idx is not None or routed.is_over:
                return idx
            if left_s <= 0:
                raise failure or self._replicas.nobody()
            await listener.wait(min(left_s, self._replicas.backoff_s()))
        routed.tried.clear()
        return None

    def _choose(self, routed: RoutedCall) -> int | None:
        with self._lock:
            usable, now = self._replicas.serving(routed.tried), time.monotonic()
            fresh = [idx for idx, replica in usable.items() if replica.is_fresh(now)]
            # one that backs off is asked at once where no other can serve, but not again and again
            among = fresh or ([] if routed.is_waiting else [*usable][:1])
            return self._routing.choose(routed.call, among) if among else None

    async def _visit(self, routed: RoutedCall, idx: int) -> Sampled | None:
        """The whole answer. None: the replica gave the call back, or diverged. Raises BackendError if it failed."""
        asked = routed.next_call()
        with self._lock:
            replica = self._replicas.known.get(idx)
            if replica is None:
                return None
            self._routing.enter(asked, idx)
            routed.enter(idx)
            self.num_moved += routed.num_visits > 1
        try:
            last = await replica.engine.generate(asked, routed.take)
            gave_back = last.stop_reason == "abort" and not routed.is_over
            if gave_back and not routed.is_recalled and routed.num_new_tokens == 0:
                raise BackendError(f"replica {idx} ended call {asked.id!r} by itself, without a token")
        except BackendError as error:
            if not routed.is_recalled:
                routed.tried.add(idx)
                self._replicas.note_failure(replica)
                logger.warning("replica.failed replica=%d call=%s error=%s", idx, asked.id, error)
            raise
        finally:
            with self._lock:
                num_prompt = len(asked.prompt_ids) - len(routed.call.prompt_ids)
                self._routing.leave(asked.id, idx, routed.token_ids[num_prompt:])
                routed.replica = None
            self._changed.notify()
        if gave_back or routed.has_diverged:
            return None
        replica.succeed()
        return routed.whole(last)


def route(replicas: Sequence[Engine], tokenizer: Tokenizer, *, seed: int = 0) -> Engine:
    """The one engine there is, or a router over several."""
    return replicas[0] if len(replicas) == 1 else RoutedEngine(replicas, stop_ids=tokenizer.stop_ids, seed=seed)
