"""Grammars of replies that think between tags, if at all, and then answer.

Knows: the thinking block, where calls may stand in text.  Knows not: how a call is written; the format's grammar does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.text.parsers.lark import CallGrammar, Lark, ReplySpec, chain, regex_of
from ludus.text.parsers.tags import THINK_CLOSE, THINK_OPEN


@dataclass(frozen=True)
class AnswerGrammar:
    """Thinking, then text, calls or JSON."""

    calls: CallGrammar | None = None
    """None: there are no calls."""
    splits_reasoning: bool = False
    starts: str = ""
    """Characters of which one, at the start of an answer, begins a call without a tag."""

    def reply(self, lark: Lark, wanted: ReplySpec, in_reasoning: bool) -> str:
        bodies = [] if wanted.schema is None else [lark.json(wanted.schema)]
        calls = self.calls if wanted.tools else None
        section = "" if calls is None else calls.section(lark, wanted.tools, parallel=wanted.parallel)
        if calls is not None and not (wanted.text and calls.opener):
            body = chain(lark.text(calls.opener), section)
            is_one = not wanted.parallel or calls.separator is None
            bodies.append(body if is_one else lark.repeated(lark.rule(body), calls.separator or ""))
        if wanted.text:
            bodies.append(self._text(lark, calls, section, parallel=wanted.parallel))
        return chain(self._thinking(lark, in_reasoning=in_reasoning), lark.one_of(bodies))

    def _text(self, lark: Lark, calls: CallGrammar | None, section: str, *, parallel: bool) -> str:
        """Text in which each opening tag begins a call."""
        if calls is None:
            return f"{lark.rule('/(?s:.+)/', is_terminal=True)}?"
        if not calls.opener:  # what begins otherwise is no call, wherever it goes
            return lark.rule(f"/[^{regex_of(self.starts)}\\s](?s:.*)/", is_terminal=True) + "?"
        tail = f"{lark.without(calls.opener)}?"
        called = f"{lark.upto(calls.opener)} {section}"
        return f"({called})* {tail}" if parallel else f"({called} | {tail})"

    def _thinking(self, lark: Lark, *, in_reasoning: bool) -> str:
        if not in_reasoning and not self.splits_reasoning:
            return ""
        gap = lark.rule(r"/\n{1,2}/", is_terminal=True)
        thought = f"{lark.upto(THINK_CLOSE)} {gap}?"
        return thought if in_reasoning else f"({lark.text(THINK_OPEN)} {thought})?"
