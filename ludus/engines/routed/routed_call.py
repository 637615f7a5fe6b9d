"""One call on its way through replicas: what was delivered of its answer, and what the next replica is to be asked.

Knows: calls, tokens as they come.  Knows not: engines, which replica is next.
Invariant: every token of the answer is delivered once, in order, whichever replica sampled it.

A replica that takes over goes on after the tokens that came. What is drawn from its own answer (a grammar, penalties,
stop strings) cannot begin in the middle: it is sampled again from the start, delivered from where it had been, must be
the same until there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from ludus.engines.base import OnTokens
from ludus.types import Call, Sampled, StopReason, TokenChunk


@dataclass(slots=True, eq=False)
class RoutedCall:
    """One call, at one replica or between two. Used on the event loop that awaits it."""

    call: Call
    """Its seed is set: whoever takes over draws as the one before would have."""
    on_tokens: OnTokens | None
    replica: int | None = None
    """Where it is. None: between two."""
    num_visits: int = 0
    """Replicas it was sent to, one after the other."""
    tried: set[int] = field(default_factory=set)
    """Replicas that failed since the last token came."""
    is_aborted: bool = False
    """Its caller wants no more of it."""
    is_recalled: bool = False
    """It is to leave the replica where it is, and goes on elsewhere."""
    has_diverged: bool = False
    """Sampled again, its tokens were others than those that had been delivered."""
    _waits_since: float | None = None
    """When it first found no replica since the last token came. None: it has not."""
    _delivered: list[TokenChunk] = field(default_factory=list)
    _num_before: int = 0
    """Tokens delivered before the present replica began."""
    _num_again: int = 0
    """Tokens that the present replica sampled though they were delivered before."""

    @property
    def is_replayed(self) -> bool:
        """Its tokens depend on those before them in the answer, so that it can only begin anew."""
        sampling = self.call.sampling
        return sampling.grammar is not None or sampling.penalises or bool(sampling.stop)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for chunk in self._delivered for token in chunk.token_ids)

    @property
    def is_over(self) -> bool:
        """Its caller wants no more of it, or its time is up."""
        deadline_at = self.call.deadline_at
        return self.is_aborted or (deadline_at is not None and time.monotonic() >= deadline_at)

    @property
    def is_waiting(self) -> bool:
        """It has found no replica since the last token came."""
        return self._waits_since is not None

    @property
    def num_new_tokens(self) -> int:
        """Tokens that the present replica has sampled."""
        return len(self.token_ids) - self._num_before + self._num_again

    def enter(self, replica: int) -> None:
        """The call is sent to a replica."""
        self.replica, self.is_recalled = replica, False
        self.num_visits += 1

    def left_s(self, patience_s: float) -> float:
        """How much longer a call without a replica waits for one."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        until = self._waits_since + patience_s
        return (until if self.call.deadline_at is None else min(until, self.call.deadline_at)) - now

    def take(self, chunk: TokenChunk) -> None:
        """New tokens of the present replica."""
        if self.is_replayed and self._num_again < self._num_before:
            chunk = self._without_delivered(chunk)
        if not chunk.token_ids or self.has_diverged:
            return
        self.tried.clear()
        self._waits_since = None
        self._delivered.append(chunk)
        if self.on_tokens is not None:
            self.on_tokens(chunk)

    def next_call(self) -> Call:
        """What the next replica is asked: the rest of the answer, or all of it again."""
        token_ids = self.token_ids
        self._num_before, self._num_again = len(token_ids), 0
        if self.is_replayed or not token_ids:
            return self.call
        most = self.call.sampling.max_new_tokens
        left = None if most is None else most - len(token_ids)
        sampling = replace(self.call.sampling, max_new_tokens=left)
        prompt_ids = self.call.prompt_ids + token_ids
        return replace(self.call, prompt_ids=prompt_ids, sampling=sampling, num_answered=len(token_ids))

    def ended_by(self, stop_ids: frozenset[int], context_length: int) -> StopReason | None:
        """Why nothing is left to sample, though no replica said so. None: something is."""
        token_ids, sampling = self.token_ids, self.call.sampling
        if self.is_over:
            return "abort"
        if token_ids and not self.is_replayed:
            if token_ids[-1] in sampling.stop_ids(stop_ids):
                return "stop"
            if len(token_ids) >= self.call.num_new_tokens(context_length):
                return "length"
        return None

    def delivered(self, stop_reason: StopReason) -> Sampled:
        """The answer as far as it was delivered."""
        return self._whole(len(self.token_ids), stop_reason)

    def whole(self, last: Sampled) -> Sampled:
        """The answer, of which the present replica has returned `last`."""
        if self._num_before == 0:
            return last
        if self.is_replayed:  # broken off before it came as far as it had been?
            return last if len(last.token_ids) >= self._num_before else self.delivered(last.stop_reason)
        before = self._whole(self._num_before, last.stop_reason)
        num_last, sampling = len(last.token_ids), self.call.sampling
        return replace(
            last,
            token_ids=before.token_ids + last.token_ids,
            logprobs=before.logprobs + last.logprobs,
            versions=before.versions + last.versions,
            top_logprobs=before.top_logprobs + (last.top_logprobs or ((),) * num_last) if sampling.top_logprobs else (),
            kept_ids=before.kept_ids + (last.kept_ids or (None,) * num_last) if sampling.cuts else (),
            prefill_s=None,  # of the first token the replica before would have known
        )

    def _whole(self, num_tokens: int, stop_reason: StopReason) -> Sampled:
        """The first tokens that were delivered. What they were drawn among went down with the replica that knew it."""
        sampling = self.call.sampling
        return Sampled(
            token_ids=self.token_ids[:num_tokens],
            logprobs=tuple(logprob for chunk in self._delivered for logprob in chunk.logprobs)[:num_tokens],
            versions=tuple(version for chunk in self._delivered for version in chunk.versions)[:num_tokens],
            stop_reason=stop_reason,
            seed=sampling.seed or 0,
            top_logprobs=((),) * num_tokens if sampling.top_logprobs else (),
            kept_ids=(None,) * num_tokens if sampling.cuts else (),
        )

    def _without_delivered(self, chunk: TokenChunk) -> TokenChunk:
        """What of a chunk that is sampled again was not delivered yet."""
        delivered = self.token_ids[self._num_again : self._num_before]
        again = chunk.token_ids[: len(delivered)]
        self.has_diverged |= again != delivered[: len(again)]
        self._num_again += len(again)
        cut = len(again)
        return TokenChunk(chunk.token_ids[cut:], chunk.logprobs[cut:], chunk.versions[cut:])
