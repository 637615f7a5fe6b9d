"""The engine without threads: calls in, one step at a time, tokens and answers out.

Knows: scheduler, runner, versions.  Knows not: event loops, leases, chat.
Invariant: a call that was added ends in exactly one Progress with its answer, or in `fail_all`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as TokenSequence
from dataclasses import dataclass

from ludus.engines.base import check_call_id, check_length, check_version
from ludus.engines.local.draws.select import choose_sampling_kernel
from ludus.engines.local.graphs import choose_capture
from ludus.engines.local.kernels.base import PAGE_TOKENS, AttentionKernel
from ludus.engines.local.paged import PagedCache
from ludus.engines.local.pages import PagePool
from ludus.engines.local.runner import Runner
from ludus.engines.local.scheduler import Scheduler
from ludus.engines.local.settings import InferenceSettings
from ludus.engines.sequence import SampledToken, Sequence
from ludus.errors import UserError
from ludus.models.load import LoadedModel
from ludus.text.constraint import Constraints
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, EngineStats, Sampled, StopReason, TokenChunk


@dataclass(frozen=True, slots=True)
class CallProgress:
    """What a step brought one call."""

    call_id: str
    draw: SampledToken | None
    """None: no token, the call only ended."""
    version: int
    """Of the weights."""
    answer: Sampled | None
    """None: the call goes on."""

    @property
    def chunk(self) -> TokenChunk | None:
        """The token for who listens; few do, so it is made when asked for."""
        if self.draw is None:
            return None
        return TokenChunk((self.draw.token_id,), (self.draw.logprob,), (self.version,))


class EngineCore:
    """Sequences, pages, model and version. Not thread-safe: one thread drives it."""

    def __init__(
        self, model: LoadedModel, tokenizer: Tokenizer, settings: InferenceSettings, kernel: AttentionKernel
    ) -> None:
        self._tokenizer = tokenizer
        self._constraints = Constraints(tokenizer)
        self._settings = settings
        self._vocab_size = model.head_weight.shape[0]
        num_pages = _num_pages(model, settings)
        self.context_length = min(model.config.context_length, num_pages * PAGE_TOKENS)
        draws = choose_sampling_kernel(settings.kernels, model.head_weight)
        capture = choose_capture(model.head_weight.device)
        self._runner = Runner(
            model, kernel, draws, num_pages=num_pages, max_running=settings.max_running, capture=capture
        )
        self._scheduler = Scheduler(
            PagePool(num_pages, page_tokens=PAGE_TOKENS),
            max_batch_tokens=settings.max_batch_tokens,
            max_running=settings.max_running,
        )
        self._sequences: dict[str, Sequence] = {}
        self._counters = EngineStats(version=0, num_pages=num_pages)

    def __repr__(self) -> str:
        return f"<EngineCore version={self.version} {self._scheduler!r}>"

    @property
    def version(self) -> int:
        return self._counters.version

    @property
    def is_idle(self) -> bool:
        return not self._sequences

    def check(self, call: Call) -> None:
        """Raises UserError if `call` cannot be served. Safe from any thread."""
        check_prompt(call.prompt_ids, vocab_size=self._vocab_size, context_length=self.context_length)
        check_sampling(call, vocab_size=self._vocab_size)
        if call.sampling.grammar is not None:
            self._constraints.check(call.sampling.grammar)

    def check_scored(self, token_ids: TokenSequence[int]) -> None:
        """Raises UserError if `token_ids` cannot be scored. Safe from any thread."""
        check_prompt(token_ids, vocab_size=self._vocab_size, context_length=self.context_length + 1)

    def add(self, call: Call, seed: int) -> None:
        """Queue a call that `check` has passed."""
        check_call_id(call.id, self._sequences)
        known, arrival = (self._tokenizer, self._constraints), self._counters.num_calls
        sequence = Sequence.begin(call, seed, *known, arrival=arrival, context_length=self.context_length)
        self._sequences[call.id] = sequence
        self._scheduler.add(sequence)
        self._count(num_calls=1)

    def abort(self, call_id: str) -> CallProgress | None:
        """End a call with what it has. None: no such call."""
        sequence = self._sequences.get(call_id)
        return None if sequence is None else CallProgress(call_id, None, self.version, self._finish(sequence, "abort"))

    def step(self) -> list[CallProgress]:
        """Compute one step; the calls that got a token or ended."""
        started_at = time.perf_counter()
        plan = self._scheduler.plan_step(self.version)
        draws = self._runner.run(plan) if plan.scheduled else []
        self._scheduler.commit(plan)
        num_prefilled = sum(
            max(0, min(item.sequence.num_prompt, item.start + item.num_tokens) - item.start) for item in plan.scheduled
        )
        version, progress = self.version, []
        for sequence, draw in draws:
            end = sequence.append(draw, version)
            answer = None if end is None else self._finish(sequence, *end)
            progress.append(CallProgress(sequence.call.id, draw, version, answer))
        self._count(
            num_sampled_tokens=len(draws), num_prefilled_tokens=num_prefilled, busy_s=time.perf_counter() - started_at
        )
        return progress

    def publish(self, version: int, write_weights: Callable[[], None]) -> None:
        """Sample with the weights of a newer version, which `write_weights` writes into the model's tensors."""
        check_version(version, self.version)
        write_weights()
        self._counters = dataclasses.replace(self._counters, version=version)
        if self._settings.keep_kv_on_publish:
            self._scheduler.mark_stale()
        else:
            self._scheduler.requeue_all()
        self._scheduler.pool.drop_versions_before(version)

    def score(self, token_ids: TokenSequence[int]) -> tuple[float, ...]:
        """Logprob of every token but the first."""
        return tuple(self._runner.score(token_ids))

    def fail_all(self) -> None:
        """Forget every call and every page, as after a failed step."""
        self._sequences.clear()
        self._scheduler.reset()

    def free(self) -> None:
        """Give back the memory of the pages; nothing can be computed afterwards."""
        self.fail_all()
        self._runner.free()

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return dataclasses.replace(
            self._counters,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_cached_tokens=scheduler.num_cached_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_stale_kv_tokens=sum(sequence.num_stale for sequence in tuple(scheduler.running)),
            num_free_pages=scheduler.pool.num_available,
        )

    def _finish(self, sequence: Sequence, stop_reason: StopReason, stop_string: str | None = None) -> Sampled:
        del self._sequences[sequence.call.id]
        self._scheduler.remove(sequence)
        return sequence.sampled(stop_reason, stop_string)

    def _count(self, **increments: float) -> None:
        changed = {name: getattr(self._counters, name) + value for name, value in increments.items()}
        self._counters = dataclasses.replace(self._counters, **changed)


def check_prompt(token_ids: TokenSequence[int], *, vocab_size: int, context_length: int) -> None:
    """Raises UserError if the model cannot read `token_ids`."""
    if not token_ids:
        raise UserError("the prompt is empty; a call needs at least one token")
    advice = "shorten the history, or raise engine.kv_bytes if the model's own context is longer"
    check_length(token_ids, context_length, advice)
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        wrong = next(token for token in token_ids if not 0 <= token < vocab_size)
        raise UserError(f"token id {wrong} of the prompt is outside the model's vocabulary 0..{vocab_size - 1}")


def check_sampling(call: Call, *, vocab_size: int) -> None:
    """Raises UserError naming the first sampling value that cannot be."""
    sampling = call.sampling
    num_new = 1 if sampling.max_new_tokens is None else sampling.max_new_tokens
    limits: tuple[tuple[str, float, bool, str], ...] = (
        ("temperature", sampling.temperature, 0.0 <= sampling.temperature < float("inf"), "a number >= 0"),
        ("top_p", sampling.top_p, 0.0 < sampling.top_p <= 1.0, "above 0 and at most 1"),
        ("top_k", sampling.top_k, sampling.top_k >= 0, ">= 0; 0 keeps all"),
        ("min_p", sampling.min_p, 0.0 <= sampling.min_p <= 1.0, "from 0 to 1"),
        ("repetition_penalty", sampling.repetition_penalty, sampling.repetition_penalty > 0.0, "above 0"),
        ("max_new_tokens", num_new, num_new > 0, ">= 1, or unset"),
        ("top_logprobs", sampling.top_logprobs, 0 <= sampling.top_logprobs <= vocab_size, "from 0 to the vocabulary"),
    )
    for name, value, holds, allowed in limits:
        if not holds:
            raise UserError(f"{name}={value} cannot be sampled with; it must be {allowed}")
    check_bias(sampling.logit_bias, vocab_size=vocab_size)
    if "" in sampling.stop:
        raise UserError("an empty stop string would end every answer at once; leave it out")
    if call.adapter is not None:
        raise UserError(f"adapter={call.adapter!r}: this engine serves one set of weights; leave adapter unset")


def check_bias(logit_bias: TokenSequence[tuple[int, float]], *, vocab_size: int) -> None:
    """Raises UserError unless every id is in the vocabulary, comes once and rises, and every bias is a number."""
    before = -1
    for token_id, bias in logit_bias:
        if not before < token_id < vocab_size:
            raise UserError(
                f"logit_bias names token id {token_id} after {before}; ids must rise within 0..{vocab_size - 1}"
            )
        if not math.isfinite(bias):
            raise UserError(f"logit_bias of token id {token_id} is {bias}; it must be finite, such as -100 for never")
        before = token_id


def _num_pages(model: LoadedModel, settings: InferenceSettings) -> int:
    """Pages that fit into `kv_bytes`, but never more than all sequences together could fill."""
    page_bytes = PagedCache.page_bytes(model.config, model.head_weight.dtype)
    num_pages = settings.kv_bytes // page_bytes
    if num_pages < 1:
        raise UserError(f"engine.kv_bytes={settings.kv_bytes} holds no page; one page takes {page_bytes} bytes")
    return min(num_pages, settings.max_running * -(-model.config.context_length // PAGE_TOKENS))
