"""An engine that replays written answers, token by token: for tests, docs and agents without a model.

Knows: the Engine contract, a tokenizer.  Knows not: models, weights, chat.
Invariant: it keeps every point of the contract in `engines/base.py`, so what passes on it tests the caller.

Its distribution is a fixed one: the logprob of a token depends on its id alone, never on what stands before it. But
what a call forbids (by its grammar, or by a bias of -100) is not said: a script with such a token is an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice

from ludus.engines.base import OnTokens, WeightSource
from ludus.errors import BackendError, UserError
from ludus.text.constraint import Constraint, Constraints
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, EngineStats, Sampled, StopReason, TokenChunk

Answer = str | Sequence[int]
Answers = Iterable[Answer] | Callable[[Call], Answer]
_BAN = -100.0
"""The bias by which wire protocols say never."""


class ScriptedEngine:
    """Answers call after call with the next written answer, or with what a function of the call returns.

    answers: text (encoded; the model's stop token is added) or token ids (taken as they are; the stop token is
    added unless one is among them). A function gives the same answer to the same call, an iterable runs out.
    token_delay_s: pause before each token, to imitate a slow model.  places: calls that are sampled at once, to
    imitate a small one; more wait. None: no limit.
    """

    def __init__(
        self,
        answers: Answers,
        tokenizer: Tokenizer,
        *,
        token_delay_s: float = 0.0,
        context_length: int = 8192,
        places: int | None = None,
    ) -> None:
        if places is not None and places < 1:
            raise UserError(f"places={places} must be 1 or more; without a limit, leave it out")
        self._answer: Callable[[Call], Answer] = answers if callable(answers) else _Script(answers).take
        self._tokenizer = tokenizer
        self._constraints = Constraints(tokenizer)
        self._token_delay_s = token_delay_s
        self._context_length = context_length
        self._places = places
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._calls: list[Call] = []
        self._version = 0
        self._paused = False
        self._closed = False
        self._num_sampled = 0
        self._num_prefilled = 0

    def __repr__(self) -> str:
        stats = self.stats()
        return f"ScriptedEngine(version={stats.version}, calls={stats.num_calls}, running={stats.num_running})"

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def shares_weights(self) -> bool:
        return False

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call so far, in order of arrival: prompts, seeds and limits as the engine saw them."""
        with self._lock:
            return tuple(self._calls)

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        """The next written answer; under a grammar it ends where the grammar does.

        Raises BackendError when no answer is left, naming the call's number, and at a token that the call forbids.
        """
        if len(call.prompt_ids) >= self._context_length:
            raise UserError(
                f"the prompt has {len(call.prompt_ids)} tokens and must be shorter than the context of "
                f"{self._context_length}; shorten the history"
            )
        running = self._register(call)
        try:
            answer_ids = self._answer_ids(call)
            while running.stop_reason is None:
                if await self._wait_turn(running):
                    self._sample_one(running, answer_ids, on_tokens)
            return running.sampled()
        finally:
            self._leave(call.id)

    async def abort(self, call_id: str) -> None:
        with self._lock:
            running = self._running.get(call_id)
        if running is not None:
            running.abort()

    async def publish(self, version: int, weights: WeightSource) -> None:
        del weights  # the answers are written down: no weights are read
        with self._lock:
            if version <= self._version:
                raise UserError(f"version={version} must be greater than the published one, {self._version}")
            self._version = version

    async def pause(self) -> None:
        with self._lock:
            self._paused = True

    async def resume(self) -> None:
        with self._lock:
            self._paused = False
            running = tuple(self._running.values())
        for call in running:
            call.wake()

    async def score(self, token_ids: Sequence[int]) -> tuple[float, ...]:
        return tuple(_logprob(token) for token in token_ids[1:])

    def stats(self) -> EngineStats:
        with self._lock:
            return EngineStats(
                version=self._version,
                num_running=min(len(self._running), self._places or len(self._running)),
                num_waiting=max(0, len(self._running) - (self._places or len(self._running))),
                num_calls=len(self._calls),
                num_sampled_tokens=self._num_sampled,
                num_prefilled_tokens=self._num_prefilled,
            )

    async def check(self) -> None:
        if self._closed:
            raise BackendError("the engine is closed; open a new one")

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            running = tuple(self._running.values())
        for call in running:
            call.abort()

    def _register(self, call: Call) -> _Running:
        grammar = call.sampling.grammar
        constraint = None if grammar is None else self._constraints.start(grammar)
        with self._lock:
            if self._closed:
                raise BackendError("the engine is closed; open a new one")
            if call.id in self._running:
                raise UserError(f"call id {call.id!r} is running already; every call needs an id of its own")
            seed = len(self._calls) if call.sampling.seed is None else call.sampling.seed
            running = _Running(
                call,
                seed,
                call.num_new_tokens(self._context_length),
                call.sampling.stop_ids(self._tokenizer.stop_ids),
                asyncio.get_running_loop(),
                constraint,
                is_held=constraint is not None or bool(call.sampling.logit_bias),
            )
            self._running[call.id] = running
            self._calls.append(call)
            self._num_prefilled += len(call.prompt_ids)
            return running

    @cached_property
    def _stop_id(self) -> int:
        return _stop_id(self._tokenizer)

    def _answer_ids(self, call: Call) -> tuple[int, ...]:
        answer = self._answer(call)
        token_ids = self._tokenizer.encode(answer) if isinstance(answer, str) else tuple(answer)
        if self._tokenizer.stop_ids.isdisjoint(token_ids):
            token_ids += (self._stop_id,)
        return token_ids

    async def _wait_turn(self, running: _Running) -> bool:
        """Whether a token may be sampled now; false when the call was aborted or the engine is paused meanwhile."""
        while not running.is_over and not self._has_place(running):
            await running.wait(None)
        if self._token_delay_s > 0:
            await running.wait(self._token_delay_s)
        else:
            await asyncio.sleep(0)
        while self._paused and not running.is_over:
            await running.wait(None)
        if running.is_over:
            running.stop_reason = "abort"
        return running.stop_reason is None

    def _has_place(self, running: _Running) -> bool:
        if self._places is not None and not running.has_place:
            with self._lock:
                running.has_place = any(first is running for first in islice(self._running.values(), self._places))
        return self._places is None or running.has_place

    def _leave(self, call_id: str) -> None:
        """The call has ended; one that waits gets its place."""
        with self._lock:
            del self._running[call_id]
            last = None if self._places is None else next(islice(self._running.values(), self._places - 1, None), None)
        if last is not None and not last.has_place:
            last.wake()

    def _sample_one(self, running: _Running, answer_ids: tuple[int, ...], on_tokens: OnTokens | None) -> None:
        with self._lock:
            if self._paused:
                return
            # an answer that its stop token does not end begins anew
            token = answer_ids[len(running.token_ids) % len(answer_ids)]
            if running.is_held:
                self._check_allowed(running, token)
            running.token_ids.append(token)
            running.versions.append(self._version)
            self._num_sampled += 1
        self._judge(running, token)
        if on_tokens is not None:
            on_tokens(TokenChunk((token,), (_logprob(token),), (running.versions[-1],)))

    def _check_allowed(self, running: _Running, token: int) -> None:
        """Raises BackendError if the call forbids the token; else its grammar moves on."""
        sampling, constraint = running.call.sampling, running.constraint
        is_banned = any(idx == token and bias <= _BAN for idx, bias in sampling.logit_bias)
        if is_banned or (constraint is not None and not constraint.allows(token)):
            before = self._tokenizer.decode(running.token_ids)
            raise BackendError(
                f"the script says token {token} ({self._tokenizer.decode((token,))!r}) after {before!r}, which the "
                f"{'bias' if is_banned else 'grammar'} of call {running.call.id!r} forbids; write another answer"
            )
        if constraint is not None:
            constraint.advance(token)

    def _judge(self, running: _Running, token: int) -> None:
        """Sets the stop reason if `token` ends the answer."""
        sampling = running.call.sampling
        if token in running.stop_ids:
            running.stop_reason = "stop"
            return
        if sampling.stop:
            text = self._tokenizer.decode(running.token_ids, skip_special=True)
            found = [(text.index(stop), stop) for stop in sampling.stop if stop in text]
            if found:
                running.stop_reason, running.stop_string = "stop", min(found)[1]
                return
        if running.constraint is not None and running.constraint.is_complete:
            running.stop_reason = "stop"
            return
        if len(running.token_ids) >= running.max_new_tokens:
            running.stop_reason = "length"


class _Script:
    """Hands out written answers one after the other; safe from several threads."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        self._lock = threading.Lock()
        self._num_taken = 0

    def take(self, call: Call) -> Answer:
        with self._lock:
            for answer in self._answers:
                self._num_taken += 1
                return answer
        raise BackendError(
            f"the script has {self._num_taken} answers and this is call number {self._num_taken + 1} "
            f"(session {call.session_id!r}); write one more answer or pass a function"
        )


@dataclass(eq=False)
class _Running:
    """One call in flight, woken on its own event loop."""

    call: Call
    seed: int
    max_new_tokens: int
    stop_ids: frozenset[int]
    loop: asyncio.AbstractEventLoop
    constraint: Constraint | None
    """None: the call has no grammar."""
    is_held: bool
    """Some tokens are forbidden."""
    has_place: bool = False
    """It is among the first calls of those that run, where the engine has so many places."""
    token_ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_string: str | None = None
    _aborted: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        """Aborted, or past its deadline."""
        deadline_at = self.call.deadline_at
        return self._aborted or (deadline_at is not None and time.monotonic() >= deadline_at)

    def abort(self) -> None:
        self._aborted = True
        self.wake()

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self._changed.set)

    async def wait(self, timeout_s: float | None) -> None:
        """Returns when woken, after `timeout_s`, or at the deadline, whichever comes first."""
        deadline_at = self.call.deadline_at
        if deadline_at is not None:
            left_s = max(0.0, deadline_at - time.monotonic())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return
        self._changed.clear()

    def sampled(self) -> Sampled:
        assert self.stop_reason is not None, "a call without a stop reason still runs"
        num_top = self.call.sampling.top_logprobs
        return Sampled(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(_logprob(token) for token in self.token_ids),
            versions=tuple(self.versions),
            stop_reason=self.stop_reason,
            seed=self.seed,
            stop_string=self.stop_string,
            top_logprobs=tuple(_top_logprobs(token, num_top) for token in self.token_ids) if num_top else (),
            kept_ids=tuple(map(_kept_ids, self.token_ids)) if self.call.sampling.cuts else (),
        )


@lru_cache(maxsize=2**16)
def _logprob(token: int) -> float:
    """The logprob of a token, between -4 and 0: a digest of its id, so that a shifted list is noticed."""
    return -hashlib.blake2b(token.to_bytes(8, "little"), digest_size=1).digest()[0] / 64 - 1 / 128


def _top_logprobs(token: int, num_top: int) -> tuple[tuple[int, float], ...]:
    """The `num_top` likeliest among the token and its neighbours by id."""
    near = ((token + offset, _logprob(token + offset)) for offset in range(num_top))
    return tuple(sorted(near, key=lambda pair: -pair[1]))


def _kept_ids(token: int) -> tuple[int, ...] | None:
    """What a token was drawn among where the sampling cuts: its next neighbours by id; of one in eight, too many."""
    return None if token % 8 == 0 else (token, token + 1, token + 2)


def _stop_id(tokenizer: Tokenizer) -> int:
    """The id that ends a written answer: the tokenizer's eos if it is a stop id, else the smallest stop id."""
    if not tokenizer.stop_ids:
        raise UserError("the tokenizer names no end-of-turn token; set `eos_token` in tokenizer_config.json")
    eos_ids = tokenizer.encode(tokenizer.special_tokens.get("eos_token", ""))
    return eos_ids[0] if len(eos_ids) == 1 and eos_ids[0] in tokenizer.stop_ids else min(tokenizer.stop_ids)
