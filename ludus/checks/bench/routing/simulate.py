"""A load over replicas on paper under one policy: how long calls take, and how much stands idle. Pure.

Knows: loads, policies, replicas on paper.  Knows not: engines, clocks.
Invariants: the same arguments give the same figures; every call of the load is placed once and ends once.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ludus.checks.bench.load import percentile
from ludus.checks.bench.routing.load import Ask, SimulatedSession
from ludus.checks.bench.routing.policies import Policy
from ludus.checks.bench.routing.replica import PaperCall, PaperReplica, ReplicaSpeed
from ludus.errors import UserError
from ludus.types import Call, Sampling


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulation came to."""

    num_calls: int
    seconds: float
    """From the first call to the last answer."""
    latencies_s: tuple[float, ...]
    """Of each call, from asking to its last token; in the order in which they ended."""
    sessions_s: tuple[float, ...]
    """Of each session, pauses included."""
    idle_share: float
    """Of all replicas' time, what they have no call in, until the last answer."""
    cached_share: float
    """Of the prompts' tokens, those that a replica knew."""
    decision_us: float
    """Microseconds of a processor that the policy took for a call: the one figure that depends on the machine."""

    def row(self, policy: str, num_replicas: int) -> dict[str, float | int | str]:
        """As the table shows it."""
        return {
            "policy": policy,
            "replicas": num_replicas,
            "p50_s": percentile(self.latencies_s, 50),
            "p95_s": percentile(self.latencies_s, 95),
            "p99_s": percentile(self.latencies_s, 99),
            "session_p99_s": percentile(self.sessions_s, 99),
            "idle_share": self.idle_share,
            "cached_share": self.cached_share,
            "sessions_per_s": len(self.sessions_s) / self.seconds,
            "decision_us": self.decision_us,
        }


def simulate(
    sessions: Sequence[SimulatedSession],
    policy: Callable[[int, int], Policy],
    *,
    num_replicas: int,
    at_once: int,
    speed: ReplicaSpeed | None = None,
    max_new_tokens: int = 2048,
    context_length: int = 32_768,
) -> Simulated:
    """The figures of the whole load. at_once: sessions that run at the same time; the next one begins when one ends.

    Raises UserError for a load or a number that leaves nothing to simulate.
    """
    if not sessions or num_replicas < 1 or at_once < 1:
        raise UserError(
            f"{len(sessions)} sessions, {at_once} at once, on {num_replicas} replicas: each must be 1 or more"
        )
    replicas = [PaperReplica(speed or ReplicaSpeed()) for _ in range(num_replicas)]
    run = _Simulation(policy(num_replicas, context_length), replicas, deque(sessions), max_new_tokens)
    for _ in range(min(at_once, len(sessions))):
        run.begin_session(0.0)
    run.play()
    num_prompt = sum(replica.num_prompt_tokens for replica in replicas)
    return Simulated(
        num_calls=len(run.latencies_s),
        seconds=run.now,
        latencies_s=tuple(run.latencies_s),
        sessions_s=tuple(run.sessions_s),
        idle_share=1.0 - sum(replica.busy_s for replica in replicas) / (run.now * num_replicas),
        cached_share=sum(replica.num_cached_tokens for replica in replicas) / num_prompt,
        decision_us=run.deciding_s / len(run.latencies_s) * 1e6,
    )


@dataclass(slots=True)
class _RunningSession:
    """A session under way."""

    session: SimulatedSession
    asks: Iterator[Ask]
    began_at: float
    ask: Ask | None
    """The call that is asked next, or runs. None: there is no more."""
    asked_at: float = 0.0


@dataclass(slots=True)
class _Simulation:
    """Events in the order of time: a session asks, or a replica's next call ends."""

    policy: Policy
    replicas: list[PaperReplica]
    to_come: deque[SimulatedSession]
    max_new_tokens: int
    now: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    sessions_s: list[float] = field(default_factory=list)
    deciding_s: float = 0.0
    _events: list[tuple[float, int, _RunningSession | int]] = field(default_factory=list)
    """A heap: a session that asks, or the number of a replica, one of whose calls ends."""
    _ends_at: dict[int, int] = field(default_factory=dict)
    """By replica the event that holds; it replaces those before."""
    _calls: dict[str, _RunningSession] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def begin_session(self, now: float) -> None:
        """The next session of the load, if one is left."""
        if not self.to_come:
            return
        session = self.to_come.popleft()
        asks = session.asks()
        self._go_on(_RunningSession(session, asks, now, next(asks, None)), now)

    def play(self) -> None:
        """Until nothing happens any more."""
        while self._events:
            self.now, number, what = heapq.heappop(self._events)
            if isinstance(what, _RunningSession):
                self._ask(what)
            elif self._ends_at.get(what) == number:
                self._end(what)

    def _go_on(self, running: _RunningSession, now: float) -> None:
        if running.ask is None:
            self.sessions_s.append(now - running.began_at)
            self.begin_session(now)
        else:
            heapq.heappush(self._events, (now + running.ask.pause_s, next(self._numbers), running))

    def _ask(self, running: _RunningSession) -> None:
        assert running.ask is not None, "a session that asks has a call"
        number = next(self._numbers)
        session, sampling = running.session, Sampling(max_new_tokens=self.max_new_tokens)
        call = Call(f"{number}", session.id, running.ask.prompt_ids, sampling, group_id=session.group_id)
        self._calls[call.id], running.asked_at = running, self.now
        started_at = time.thread_time()
        replica = self.policy.place(call)
        self.deciding_s += time.thread_time() - started_at
        self.replicas[replica].enter(self.now, PaperCall(call, running.ask.answer_ids))
        self._expect(replica)

    def _end(self, replica: int) -> None:
        ended = self.replicas[replica].end_next(self.now)
        self.policy.leave(ended.call, replica, ended.answer_ids)
        self._expect(replica)
        running = self._calls.pop(ended.call.id)
        self.latencies_s.append(self.now - running.asked_at)
        running.ask = next(running.asks, None)
        self._go_on(running, self.now)

    def _expect(self, replica: int) -> None:
        """The replica's next end has changed."""
        end_at = self.replicas[replica].next_end_at
        number = self._ends_at[replica] = next(self._numbers)
        if end_at is not None:
            heapq.heappush(self._events, (end_at, number, replica))
