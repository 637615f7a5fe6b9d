"""Answers of the local server's engine: those scripted by a case, else random words, or text that a grammar allows.

Knows: calls, a tokenizer, grammars.  Knows not: HTTP, protocols.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Sequence

import llguidance

from ludus.errors import InternalError
from ludus.text.tokenizer import Tokenizer
from ludus.types import Call

Answer = str | tuple[int, ...] | Exception
"""Text, token ids, or an exception with which the engine fails."""

WORDS = ("amber", "azure", "beige", "black", "crimson", "green", "lime", "olive", "orange", "red", "rose", "white")
_NUM_WORDS = (6, 12)
_MOST_GRAMMAR_TOKENS = 400  # many times what the suite's schemas need; a grammar that does not end is an error
# Under a grammar the engine prefers what ends soonest: closing characters before new content, a call before thinking.
_CLOSING_FIRST = '"}]{:,0123456789[<'


class ScriptedAnswers:
    """The answers of one engine, by session. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._guide = tokenizer.guidance
        self._stop_ids = tokenizer.stop_ids
        texts = [tokenizer.decode([idx]) for idx in range(tokenizer.vocab_size)]
        self._by_rank = sorted(range(len(texts)), key=lambda idx: _rank(texts[idx], is_end=idx in self._stop_ids))
        self._scripts: dict[str, deque[Answer]] = {}
        self._lock = threading.Lock()

    def script(self, session_id: str, answers: Sequence[Answer]) -> None:
        """Answer the next calls of the session with these, one each; later calls get unscripted answers."""
        with self._lock:
            self._scripts.setdefault(session_id, deque()).extend(answers)

    def answer(self, call: Call) -> str | tuple[int, ...]:
        """The answer to `call`."""
        with self._lock:
            script = self._scripts.get(call.session_id)
            written = script.popleft() if script else None
        if isinstance(written, Exception):
            raise written
        if written is not None:
            return written
        if call.sampling.grammar is not None:
            return self._shortest(call.sampling.grammar)
        return _words(call)

    def _shortest(self, grammar: str) -> tuple[int, ...]:
        """Tokens of a short text that `grammar` allows, including the end token."""
        matcher = llguidance.LLMatcher(self._guide, grammar, log_level=0)
        tokens: list[int] = []
        while len(tokens) < _MOST_GRAMMAR_TOKENS:
            allowed = matcher.compute_logit_bias()
            token = next((idx for idx in self._by_rank if idx < len(allowed) and allowed[idx]), None)
            if token is None or not matcher.consume_token(token):
                raise InternalError(
                    f"the grammar allows no token after {len(tokens)}: {matcher.get_error()}\n{grammar}"
                )
            tokens.append(token)
            if token in self._stop_ids:
                break
        return tuple(tokens)


def _words(call: Call) -> str:
    """A line of random colours; greedy calls always get the same one."""
    drawn = random.Random(0 if call.sampling.is_greedy else call.sampling.seed)
    words = drawn.choices(WORDS, k=drawn.randint(*_NUM_WORDS))
    return " ".join(words).capitalize() + "."


def _rank(text: str, *, is_end: bool) -> tuple[int, ...]:
    if is_end:
        return (0,)
    if not text or not text.isprintable() or text.isspace() or "\ufffd" in text or "\\" in text:
        return (3, len(text))
    first = text[0]
    if first in _CLOSING_FIRST:
        # "<tool_call>" and "<think>" may begin with the same token; prefer the longer token.
        return (1, _CLOSING_FIRST.index(first), -len(text) if first == "<" else len(text), -ord(text[-1]))
    return (2, len(text), -ord(first))
