"""Decides what the next step computes: which tokens of which sequences, in which pages.

Knows: sequences, pages.  Knows not: tensors, models, threads.

A step takes, in this order: one token of every sequence that decodes, chunks of prompts that are being computed,
and sequences that were waiting. When pages run out the youngest gives its pages back and is computed again later,
so the oldest always goes on and everything that fits alone finishes.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass
from operator import attrgetter

from ludus.engines.local.pages import PagePool, PrefixMatch
from ludus.engines.sequence import Sequence

_ARRIVAL = attrgetter("arrival")


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens start .. start + num_tokens of one sequence; `samples`: its next token is drawn after them."""

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `copies` (from page, to page) happen first, in order."""

    scheduled: tuple[ScheduledChunk, ...]
    copies: tuple[tuple[int, int], ...]


class _Draft:
    """A step in the making."""

    def __init__(self, max_tokens: int) -> None:
        self.room = max_tokens
        self.scheduled: dict[Sequence, ScheduledChunk] = {}
        self.copies: list[tuple[int, int]] = []

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        samples = num_tokens == sequence.num_uncomputed
        self.scheduled[sequence] = ScheduledChunk(sequence, sequence.num_computed, num_tokens, samples)
        self.room -= num_tokens

    def drop(self, sequence: Sequence) -> None:
        scheduled = self.scheduled.pop(sequence, None)
        if scheduled is not None:
            self.room += scheduled.num_tokens


class Scheduler:
    """Sequences that wait and run, oldest first, and the pages they share."""

    def __init__(self, pool: PagePool, *, max_batch_tokens: int, max_running: int) -> None:
        self.pool = pool
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        self._max_batch_tokens = max_batch_tokens
        self._max_running = max_running

    def __repr__(self) -> str:
        return f"<Scheduler running={len(self.running)} waiting={len(self.waiting)} {self.pool!r}>"

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=_ARRIVAL)

    def remove(self, sequence: Sequence) -> None:
        """The sequence is over; its keys and values stay findable for the next turn."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._give_back(sequence)
        else:
            self.waiting.remove(sequence)

    def plan_step(self, version: int) -> StepPlan:
        """What to compute now with the weights of `version`; allocates its pages. Empty: nothing can be done."""
        draft = _Draft(self._max_batch_tokens)
        decoding = [sequence for sequence in self.running if sequence.num_uncomputed == 1]
        chunked = [sequence for sequence in self.running if sequence.num_uncomputed > 1]
        preempted: set[Sequence] = set()
        for sequence in decoding + chunked:
            if sequence not in preempted and draft.room:
                self._continue(sequence, draft, preempted)
        if preempted:
            self.num_preemptions += len(preempted)
        else:
            self._admit(version, draft)
        return StepPlan(tuple(draft.scheduled.values()), tuple(draft.copies))

    def commit(self, plan: StepPlan) -> None:
        """The step has run: its keys and values exist, and prompts become findable."""
        for item in plan.scheduled:
            sequence = item.sequence
            sequence.num_computed = item.start + item.num_tokens
            if item.num_tokens > 1 or sequence.num_computed == sequence.num_prompt:
                self._register(sequence)

    def mark_stale(self) -> None:
        """New weights: what runs goes on with keys and values of the old ones, and nobody else may find them."""
        for sequence in self.running:
            sequence.kv_version = None
            sequence.num_stale = sequence.num_computed

    def requeue_all(self) -> None:
        """Everything that runs gives its pages back and is computed again."""
        for sequence in tuple(self.running):
            self._requeue(sequence)

    def reset(self) -> None:
        """Forget all sequences and pages; counters stay."""
        self.waiting.clear()
        self.running.clear()
        self.pool = PagePool(self.pool.num_pages, page_tokens=self.pool.page_tokens)

    def _continue(self, sequence: Sequence, draft: _Draft, preempted: set[Sequence]) -> None:
        num_tokens = min(sequence.num_uncomputed, draft.room)
        while not self._extend(sequence, sequence.num_computed + num_tokens):
            victim = self.running[-1]
            self._requeue(victim)
            preempted.add(victim)
            draft.drop(victim)
            if victim is sequence:
                return
        draft.add(sequence, num_tokens)

    def _extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether the table of `sequence` holds `num_tokens` tokens now."""
        missing = self.pool.pages_for(num_tokens) - len(sequence.pages)
        if missing > 0:
            pages = self.pool.allocate(missing)
            if pages is None:
                return False
            sequence.pages.extend(pages)
        return True

    def _admit(self, version: int, draft: _Draft) -> None:
        for sequence in tuple(self.waiting):
            if not draft.room or len(self.running) >= self._max_running:
                return
            # The last token is always computed: its logits give the next one.
            match = self.pool.match(version, sequence.token_ids, max_tokens=len(sequence.token_ids) - 1)
            if self._is_being_computed(sequence, match, draft):
                continue
            if not self._take_pages(sequence, match, draft):
                return
            self._start(sequence, match, version)
            draft.add(sequence, min(sequence.num_uncomputed, draft.room))

    def _is_being_computed(self, sequence: Sequence, match: PrefixMatch, draft: _Draft) -> bool:
        """Another sequence computes more of this one's prefix in this very step: waiting a step saves the work.

        A page's worth is what a step of waiting must save, or all that there is to save.
        """
        wanted = min(match.num_tokens + self.pool.page_tokens, len(sequence.token_ids) - 1)
        if wanted <= match.num_tokens:
            return False
        prefix = sequence.token_ids[:wanted]
        return any(
            item.start + item.num_tokens >= wanted > item.start
            and item.sequence.kv_version is not None
            and item.sequence.token_ids[:wanted] == prefix
            for item in draft.scheduled.values()
        )

    def _take_pages(self, sequence: Sequence, match: PrefixMatch, draft: _Draft) -> bool:
        """Whether `sequence` got the pages of its first chunk, with room left for the rest and for those that run."""
        pages = self.pool.acquire(match)
        num_first = min(len(sequence.token_ids), match.num_tokens + draft.room)
        num_missing = self.pool.pages_for(len(sequence.token_ids)) - len(pages)
        if num_missing + len(self.running) > self.pool.num_available and self.running:
            self.pool.release(pages)
            return False
        fresh = self.pool.allocate(self.pool.pages_for(num_first) - len(pages))
        assert fresh is not None, f"{sequence!r} does not fit into {self.pool!r} alone"
        if match.copy_from is not None:
            draft.copies.append((match.copy_from, fresh[0]))
        sequence.pages = pages + fresh
        return True

    def _start(self, sequence: Sequence, match: PrefixMatch, version: int) -> None:
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=_ARRIVAL)
        sequence.num_computed = match.num_tokens
        sequence.num_stale = 0
        sequence.num_registered = 0
        sequence.kv_version = version
        num_cached = min(match.num_tokens, sequence.num_prompt)
        self.num_cached_tokens += num_cached
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens, sequence.admitted_at = num_cached, time.monotonic()

    def _requeue(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        self.add(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self._register(sequence)
        self.pool.release(sequence.pages)
        sequence.forget_kv()

    def _register(self, sequence: Sequence) -> None:
        if sequence.kv_version is not None and sequence.num_computed > sequence.num_registered:
            self.pool.register(
                sequence.kv_version, sequence.token_ids, sequence.pages, num_tokens=sequence.num_computed
            )
            sequence.num_registered = sequence.num_computed
