"""One call inside the engine: its tokens so far, the pages it holds, and the rules that end it.

Knows: calls, token ids, page numbers, stop rules.  Knows not: tensors, other sequences, threads.

    token_ids   [ prompt .................... | sampled ......... ]
    KV in pages [ num_computed .................... )  the last sampled token has none yet
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from ludus.text.constraint import Constraint, Constraints
from ludus.text.stream import Detokenizer
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call, Sampled, StopReason

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One sampled token. `logprob` is under the distribution it was drawn from."""

    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens; empty when the call did not ask."""
    kept_ids: tuple[int, ...] | None = ()
    """The ids it was drawn among, rising. Empty: the sampling cuts nothing. None: more than MAX_KEPT_IDS."""


class StopStrings:
    """Finds the first stop string in a growing text, also across tokens."""

    def __init__(self, strings: tuple[str, ...], detokenizer: Detokenizer) -> None:
        self._strings = strings
        self._detokenizer = detokenizer
        self._num_kept = max(map(len, strings)) - 1
        self._tail = ""

    def feed(self, token_id: int) -> str | None:
        """The stop string that ended the text with this token. None: none did."""
        text = self._tail + self._detokenizer.feed((token_id,))
        found = [(text.index(string), string) for string in self._strings if string in text]
        self._tail = text[max(0, len(text) - self._num_kept) :]
        return min(found)[1] if found else None


@dataclass(slots=True, eq=False)
class Sequence:
    """The mutable state of one call, from arrival to its last token."""

    call: Call
    seed: int
    arrival: int
    """Number of the call; smaller is older, and the youngest gives way first."""
    max_tokens: int
    """Prompt and answer together never get longer."""
    stop_ids: frozenset[int]
    stop_strings: StopStrings | None
    """None: the call has no stop strings."""
    token_ids: list[int]
    constraint: Constraint | None = None
    """The answer's state in its grammar, advanced by every sampled token. None: the answer is free."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    kept_ids: list[tuple[int, ...] | None] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Tokens whose keys and values lie in `pages`."""
    num_stale: int = 0
    """Those of them that older weights computed."""
    num_registered: int = 0
    """Those of them that the index of prefixes can find."""
    kv_version: int | None = 0
    """Version of all keys and values in `pages`. None: several, so nobody may share them."""
    num_cached_tokens: int | None = None
    """Prompt tokens found at the first admission. None: not admitted yet."""
    admitted_at: float = 0.0
    """Of the monotonic clock, at the first admission."""
    prefill_s: float | None = None
    """From then to the first token. None: there is none yet."""

    @classmethod
    def begin(
        cls, call: Call, seed: int, tokenizer: Tokenizer, constraints: Constraints, *, arrival: int, context_length: int
    ) -> Sequence:
        """The call before its first token."""
        sampling = call.sampling
        return cls(
            call=call,
            seed=seed,
            arrival=arrival,
            max_tokens=len(call.prompt_ids) + call.num_new_tokens(context_length),
            stop_ids=sampling.stop_ids(tokenizer.stop_ids),
            stop_strings=StopStrings(sampling.stop, Detokenizer(tokenizer)) if sampling.stop else None,
            token_ids=list(call.prompt_ids),
            constraint=None if sampling.grammar is None else constraints.start(sampling.grammar),
        )

    def __repr__(self) -> str:
        sampled = len(self.logprobs)
        return f"<Sequence {self.call.id} prompt={self.num_prompt} sampled={sampled} computed={self.num_computed}>"

    @property
    def num_prompt(self) -> int:
        return len(self.call.prompt_ids)

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed

    def forget_kv(self) -> None:
        """Everything is to be computed again; the pages themselves are the caller's to release."""
        self.pages = []
        self.num_computed = self.num_stale = self.num_registered = 0

    def append(self, draw: SampledToken, version: int) -> tuple[StopReason, str | None] | None:
        """Add a sampled token. Returns why the sequence ends with it; None: it goes on."""
        if self.prefill_s is None:
            self.prefill_s = time.monotonic() - self.admitted_at
        self.token_ids.append(draw.token_id)
        self.logprobs.append(draw.logprob)
        self.versions.append(version)
        if self.call.sampling.top_logprobs:
            self.top_logprobs.append(draw.top_logprobs)
        if self.call.sampling.cuts:
            self.kept_ids.append(draw.kept_ids)
        if self.constraint is not None:
            self.constraint.advance(draw.token_id)
            if self.constraint.failure is not None:
                # nothing that could follow would be of the grammar, and the tokens so far must stay on record
                _log.warning("engine.grammar_failed call=%s %s", self.call.id, self.constraint.failure)
                return "abort", None
        if draw.token_id in self.stop_ids:
            return "stop", None
        stop_string = self.stop_strings.feed(draw.token_id) if self.stop_strings else None
        if stop_string is not None:
            return "stop", stop_string
        if self.constraint is not None and self.constraint.is_complete:
            return "stop", None
        return ("length", None) if len(self.token_ids) >= self.max_tokens else None

    def sampled(self, stop_reason: StopReason, stop_string: str | None = None) -> Sampled:
        """The answer as it stands."""
        return Sampled(
            token_ids=tuple(self.token_ids[self.num_prompt :]),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            stop_reason=stop_reason,
            seed=self.seed,
            stop_string=stop_string,
            top_logprobs=tuple(self.top_logprobs),
            kept_ids=tuple(self.kept_ids),
            num_cached_tokens=self.num_cached_tokens or 0,
            prefill_s=self.prefill_s,
        )
