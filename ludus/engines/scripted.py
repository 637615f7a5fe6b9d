"""An engine that replays scripted answers, token by token: for tests, docs and agents without a model.

Knows: the Engine contract, a tokenizer.  Knows not: models, weights, chat.
Invariant: it keeps every point of the contract in `engines/base.py`, so what passes on it tests the caller.

Its distribution is a fixed one: the logprob of a token depends on its id alone. What a call forbids (by its grammar, or
by a bias of -100) is not said: a script with such a token is an error.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as TokenSequence
from functools import lru_cache

from ludus.engines.base import OnTokens, WeightSource, check_call_id, check_length, check_version
from ludus.engines.sequence import SampledToken, Sequence
from ludus.errors import BackendError, UserError
from ludus.processes.notifier import Notifier
from ludus.text.constraint import Constraints
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, EngineStats, Sampled, StopReason, TokenChunk

Answer = str | TokenSequence[int]
Answers = Iterable[Answer] | Callable[[Call], Answer]
Ended = tuple[StopReason, str | None]
"""Why an answer ended, and the stop string that ended it."""
_BAN = -100.0
"""The bias by which wire protocols say never."""


class ScriptedEngine:
    """Answers call after call with the next scripted answer, or with what a function of the call returns.

    answers: text (encoded; the model's stop token is added) or token ids (taken as they are; the stop token is
    added unless one is among them). A function gives the same answer to the same call, an iterable runs out.
    token_delay_s: pause before each token, to imitate a slow model.
    keeps_calls: remember every call. False for long runs: `calls` stays empty.
    """

    shares_weights = False
    shares_card = False

    def __init__(
        self,
        answers: Answers,
        tokenizer: Tokenizer,
        *,
        token_delay_s: float = 0.0,
        context_length: int = 8192,
        keeps_calls: bool = True,
    ) -> None:
        self.context_length = context_length
        self._answer = answers if callable(answers) else _in_turn(answers)
        self._tokenizer = tokenizer
        self._constraints = Constraints(tokenizer)
        self._token_delay_s = token_delay_s
        self._lock = threading.Lock()
        """Guards all below."""
        self._changed = Notifier()
        """Notified when a call may go on, or has to end."""
        self._keeps_calls = keeps_calls
        self._calls: list[Call] = []
        self._running: set[str] = set()
        self._aborted: set[str] = set()
        self._version = 0
        self._num_calls = self._num_prefilled = self._num_sampled = 0
        self._is_paused = self._is_closed = False

    def __repr__(self) -> str:
        return f"ScriptedEngine(version={self._version}, calls={self._num_calls}, running={len(self._running)})"

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call so far, in order of arrival: prompts, seeds and limits as the engine saw them."""
        with self._lock:
            return tuple(self._calls)

    async def generate(self, call: Call, on_tokens: OnTokens | None = None) -> Sampled:
        """The next scripted answer; under a grammar it ends where the grammar does.

        Raises BackendError when no answer is left, naming the call's number, and at a token that the call forbids.
        """
        running = self._begin(call)
        try:
            answer = self._encode(self._answer(call))
            ended: Ended | None = None
            with self._changed.listening() as listener:
                while ended is None:
                    await listener.wait(self._patience_s(call)) if self._is_paused else await asyncio.sleep(0)
                    if self._token_delay_s:
                        await listener.wait(min(self._token_delay_s, self._patience_s(call) or self._token_delay_s))
                    if call.id in self._aborted or self._patience_s(call) == 0:
                        ended = ("abort", None)
                    elif not self._is_paused:
                        ended = self._say(running, answer[len(running.logprobs) % len(answer)], on_tokens)
            return running.sampled(*ended)
        finally:
            with self._lock:
                self._running.discard(call.id)
                self._aborted.discard(call.id)

    async def abort(self, call_id: str) -> None:
        with self._lock:
            self._aborted |= {call_id} & self._running
        self._changed.notify()

    async def publish(self, version: int, weights: WeightSource) -> None:
        with self._lock:
            check_version(version, self._version)
            self._version = version

    async def pause(self) -> None:
        with self._lock:
            self._is_paused = True

    async def resume(self) -> None:
        self._is_paused = False
        self._changed.notify()

    async def score(self, token_ids: TokenSequence[int]) -> tuple[float, ...]:
        return tuple(map(_logprob, token_ids[1:]))

    def stats(self) -> EngineStats:
        with self._lock:
            return EngineStats(
                version=self._version,
                num_running=len(self._running),
                num_calls=self._num_calls,
                num_sampled_tokens=self._num_sampled,
                num_prefilled_tokens=self._num_prefilled,
            )

    async def check(self) -> None:
        if self._is_closed:
            raise BackendError("the engine is closed; open a new one")

    async def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._aborted |= self._running
        self._changed.notify()

    def _begin(self, call: Call) -> Sequence:
        check_length(call.prompt_ids, self.context_length)
        with self._lock:
            if self._is_closed:
                raise BackendError("the engine is closed; open a new one")
            check_call_id(call.id, self._running)
            number, known = self._num_calls, (self._tokenizer, self._constraints)
            seed = number if call.sampling.seed is None else call.sampling.seed
            running = Sequence.begin(call, seed, *known, arrival=number, context_length=self.context_length)
            if self._keeps_calls:
                self._calls.append(call)
            self._num_calls += 1
            self._num_prefilled += len(call.prompt_ids)
            self._running.add(call.id)
            return running

    def _say(self, running: Sequence, token: int, on_tokens: OnTokens | None) -> Ended | None:
        """Why the answer ends with this token. None: it goes on. Raises BackendError if the call forbids it."""
        is_banned = any(idx == token and bias <= _BAN for idx, bias in running.call.sampling.logit_bias)
        if is_banned or (running.constraint is not None and not running.constraint.allows(token)):
            before = self._tokenizer.decode(running.token_ids[running.num_prompt :])
            raise BackendError(
                f"the script says token {token} ({self._tokenizer.decode((token,))!r}) after {before!r}, which the "
                f"{'bias' if is_banned else 'grammar'} of call {running.call.id!r} forbids; write another answer"
            )
        with self._lock:
            self._num_sampled += 1
            version = self._version
            ended = running.append(_drawn(token, running.call), version)
        if on_tokens is not None:
            on_tokens(TokenChunk((token,), (_logprob(token),), (version,)))
        return ended

    def _encode(self, answer: Answer) -> tuple[int, ...]:
        """With the stop token; an answer that it does not end begins anew."""
        token_ids = self._tokenizer.encode(answer) if isinstance(answer, str) else tuple(answer)
        return token_ids if set(token_ids) & self._tokenizer.stop_ids else (*token_ids, _stop_id(self._tokenizer))

    def _patience_s(self, call: Call) -> float | None:
        """How long until its deadline, at least 0. None: it has none."""
        return None if call.deadline_at is None else max(0.0, call.deadline_at - time.monotonic())


def _in_turn(answers: Iterable[Answer]) -> Callable[[Call], Answer]:
    """Scripted answers, one for each call."""
    left, lock = enumerate(answers), threading.Lock()
    num_taken = 0

    def take(call: Call) -> Answer:
        nonlocal num_taken
        with lock:
            for idx, answer in left:
                num_taken = idx + 1
                return answer
        raise BackendError(
            f"the script has {num_taken} answers and this is call number {num_taken + 1} "
            f"(session {call.session_id!r}); write one more answer or pass a function"
        )

    return take


@lru_cache(maxsize=2**16)
def _logprob(token: int) -> float:
    """Between -4 and 0: a digest of the token's id, so that a shifted list is noticed."""
    return -hashlib.blake2b(token.to_bytes(8, "little"), digest_size=1).digest()[0] / 64 - 1 / 128


def _drawn(token: int, call: Call) -> SampledToken:
    """Beside the token its neighbours by id, as the likeliest, and as what it was drawn among; of one in eight that is
    too many to tell."""
    near = ((token + offset, _logprob(token + offset)) for offset in range(call.sampling.top_logprobs))
    kept = None if token % 8 == 0 else (token, token + 1, token + 2)
    return SampledToken(token, _logprob(token), tuple(sorted(near, key=lambda pair: -pair[1])), kept)


def _stop_id(tokenizer: Tokenizer) -> int:
    """The tokenizer's eos if it is a stop id, else the smallest stop id."""
    if not tokenizer.stop_ids:
        raise UserError("the tokenizer names no end-of-turn token; set `eos_token` in tokenizer_config.json")
    eos_ids = tokenizer.encode(tokenizer.special_tokens.get("eos_token", ""))
    return eos_ids[0] if len(eos_ids) == 1 and eos_ids[0] in tokenizer.stop_ids else min(tokenizer.stop_ids)
