"""One replica on paper: how long calls take that are sampled together, and what it remembers of prompts.

Knows: numbers of tokens, digests of prefixes, moments.  Knows not: policies, sessions.
Invariant: time goes forward; between two changes all running calls get a token every step.

A call waits for a slot, then its unknown prompt tokens are computed while the others stand still, then it decodes.
All running calls are at the same step, so one counter of steps says when each of them ends.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ludus.engines.routed.policy import BLOCK_TOKENS, block_digests
from ludus.types import Call


@dataclass(frozen=True, slots=True)
class ReplicaSpeed:
    """What a replica can do; about a model of eight billion weights on one card of 2024."""

    slots: int = 64
    """Calls that are sampled at once; more wait."""
    step_s: float = 0.012
    """Of a decoding step with one call."""
    step_s_per_call: float = 0.00015
    """More for every other call."""
    prefill_tokens_per_s: float = 12_000.0
    cached_tokens: int = 400_000
    """Of prompts and answers that are remembered, the latest used."""


@dataclass(frozen=True, slots=True)
class PaperCall:
    """A call whose answer is known beforehand."""

    call: Call
    answer_ids: Sequence[int]


@dataclass(slots=True, eq=False)
class PaperReplica:
    """One replica of a simulation."""

    speed: ReplicaSpeed
    busy_s: float = 0.0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    _now: float = 0.0
    _steps: float = 0.0
    """Decoding steps so far."""
    _prefills_until: float = 0.0
    _running: list[tuple[float, int, PaperCall]] = field(default_factory=list)
    """A heap by the step at which they end."""
    _waiting: deque[PaperCall] = field(default_factory=deque)
    _known: OrderedDict[int, None] = field(default_factory=OrderedDict)
    _num_entered: int = 0

    def enter(self, now: float, entry: PaperCall) -> None:
        """A call comes."""
        self._advance(now)
        self._waiting.append(entry)
        self._admit()

    def end_next(self, now: float) -> PaperCall:
        """The call that ends now, as `next_end_at` said."""
        self._advance(now)
        _, _, entry = heapq.heappop(self._running)
        self._learn(block_digests((*entry.call.prompt_ids, *entry.answer_ids)))
        self._admit()
        return entry

    @property
    def next_end_at(self) -> float | None:
        """When the next call ends if nothing changes. None: nothing runs."""
        if not self._running:
            return None
        num_left = max(0.0, self._running[0][0] - self._steps)
        return max(self._now, self._prefills_until) + num_left * self._step_s

    @property
    def _step_s(self) -> float:
        return self.speed.step_s + self.speed.step_s_per_call * (len(self._running) - 1)

    def _advance(self, now: float) -> None:
        if self._running:
            self.busy_s += now - self._now
            decoding_s = now - max(self._now, self._prefills_until)
            if decoding_s > 0:
                self._steps += decoding_s / self._step_s
        self._now = now

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.speed.slots:
            entry = self._waiting.popleft()
            digests = block_digests(entry.call.prompt_ids)
            num_known = next((idx for idx, digest in enumerate(digests) if digest not in self._known), len(digests))
            num_prompt = len(entry.call.prompt_ids)
            num_cached = min(num_known * BLOCK_TOKENS, max(0, num_prompt - 1))  # the last token is always computed
            self.num_prompt_tokens += num_prompt
            self.num_cached_tokens += num_cached
            prefill_s = (num_prompt - num_cached) / self.speed.prefill_tokens_per_s
            self._prefills_until = max(self._now, self._prefills_until) + prefill_s
            self._learn(digests)
            self._num_entered += 1
            heapq.heappush(self._running, (self._steps + len(entry.answer_ids), self._num_entered, entry))

    def _learn(self, digests: list[int]) -> None:
        for digest in reversed(digests):  # what many share is used last, and so forgotten last
            self._known[digest] = None
            self._known.move_to_end(digest)
        while len(self._known) * BLOCK_TOKENS > self.speed.cached_tokens:
            self._known.popitem(last=False)
