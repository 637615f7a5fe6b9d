"""Grammars that answers are held to: which tokens may come next, answer by answer.

Knows: llguidance, the tokenizer as it reads grammars.  Knows not: where grammars come from, logits, engines.
Invariant: what an answer took token by token under its grammar is the beginning of a text of the grammar.

    grammar ──compiled once──▶ pristine matcher ──copied──▶ the Constraint of one answer
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import llguidance

from ludus.errors import UserError
from ludus.text.tokenizer import Tokenizer

# A run has some grammars: the response formats and tools of its agents. One takes about a megabyte at most.
_MAX_COMPILED = 64
_SILENT = 0


class Constraint:
    """One answer's state in its grammar. Not thread-safe: one engine advances it."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def __repr__(self) -> str:
        return f"<Constraint {'failed' if self.failure else 'complete' if self.is_complete else 'open'}>"

    @property
    def is_complete(self) -> bool:
        """The text is one of the grammar, and nothing but an end-of-turn token could follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def failure(self) -> str | None:
        """Why the grammar cannot go on: a token it forbids was taken, or it has grown too complex. None: it can."""
        # the first line says what; below it the whole state of the parser is written down
        return self._matcher.get_error().partition("\n")[0] if self._matcher.is_error() else None

    def allowed(self) -> bytes:
        """One bit for each token that may come next, in native 32-bit words; ids beyond them may not.

        End-of-turn tokens are among them only where the text may end; at least one token always is. After a failure
        only end-of-turn tokens are.
        """
        return self._matcher.compute_bitmask()

    def allows(self, token_id: int) -> bool:
        """Whether the token may come next."""
        return is_allowed(self.allowed(), token_id)

    def advance(self, token_id: int) -> None:
        """Take the next token; one that is not allowed is a failure."""
        self._matcher.consume_token(token_id)


def is_allowed(mask: bytes, token_id: int) -> bool:
    """Whether the token is in a mask that `Constraint.allowed` gave."""
    words = memoryview(mask).cast("I")
    word = token_id // 32
    return word < len(words) and bool(words[word] >> token_id % 32 & 1)


class Constraints:
    """Compiled grammars of one tokenizer, the latest used. Safe to share between threads."""

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
