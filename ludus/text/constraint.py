"""Grammars that constrain answers: which tokens may come next in each answer.

Knows: llguidance and its view of the tokenizer.  Knows not: where grammars come from, logits, engines.
Invariant: the tokens that an answer has taken under its grammar are a prefix of a text in the grammar.

    grammar ──compiled once──▶ pristine matcher ──copied──▶ the Constraint of one answer
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import llguidance

from ludus.errors import UserError
from ludus.text.tokenizer import Tokenizer

# A run has a few grammars, for the response formats and tools of its agents. Each takes at most about a megabyte.
_MAX_COMPILED = 64
_SILENT = 0


class Constraint:
    """The state of one answer in its grammar. Not thread-safe: one engine advances it."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def __repr__(self) -> str:
        return f"<Constraint {'failed' if self.failure else 'complete' if self.is_complete else 'open'}>"

    @property
    def is_complete(self) -> bool:
        """Whether the text is complete, so that only an end-of-turn token can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def failure(self) -> str | None:
        """Why the grammar cannot continue: a forbidden token was taken, or it became too complex. None: it can."""
        # the first line says what; below it the whole state of the parser is written down
        return self._matcher.get_error().partition("\n")[0] if self._matcher.is_error() else None

    def allowed(self) -> bytes:
        """A bit mask of the tokens that may come next, in native 32-bit words; ids beyond its end may not.

        End-of-turn tokens are allowed only where the text may end. At least one token is always allowed; after a
        failure only end-of-turn tokens are.
        """
        return self._matcher.compute_bitmask()

    def allows(self, token_id: int) -> bool:
        """Whether the token may come next."""
        return is_allowed(self.allowed(), token_id)

    def advance(self, token_id: int) -> None:
        """Take the next token; a token that is not allowed causes a failure."""
        self._matcher.consume_token(token_id)


def is_allowed(mask: bytes, token_id: int) -> bool:
    """Whether the token is in a mask from `Constraint.allowed`."""
    words = memoryview(mask).cast("I")
    word = token_id // 32
    return word < len(words) and bool(words[word] >> token_id % 32 & 1)


class Constraints:
    """A cache of the most recently used compiled grammars of one tokenizer. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Constraints of {len(self._compiled)} grammars>"

    def check(self, grammar: str) -> None:
        """Raises UserError with llguidance's message if `grammar` cannot be compiled."""
        self._pristine(grammar)

    def start(self, grammar: str) -> Constraint:
        """The constraint of a new answer. Raises UserError as `check` does."""
        return Constraint(self._pristine(grammar).deep_copy())

    def _pristine(self, grammar: str) -> llguidance.LLMatcher:
        with self._lock:
            matcher = self._compiled.get(grammar)
            if matcher is not None:
                self._compiled.move_to_end(grammar)
                return matcher
        matcher = llguidance.LLMatcher(self._tokenizer.guidance, grammar, log_level=_SILENT)
        if matcher.is_error():
            raise UserError(
                f"the grammar cannot be compiled: {matcher.get_error().strip()}; "
                "it must be llguidance's form of Lark with a rule `start`"
            )
        with self._lock:
            self._compiled[grammar] = matcher
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        return matcher
