"""Grammars of replies that think between tags, if at all, and then answer.

Knows: the thinking block, where calls may stand in text.  Knows not: how a call is written; the format's grammar does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ludus.text.parsers.lark import CallGrammar, Lark, ReplySpec, Section, chain, regex_of
from ludus.text.parsers.tags import THINK_CLOSE, THINK_OPEN


@dataclass(frozen=True)
class AnswerGrammar:
    """Thinking, then text, calls or JSON."""

    calls: CallGrammar | None = None
    """None: there are no calls."""
    splits_reasoning: bool = False
    starts: str = ""
    """Characters of which one, at the start of an answer, begins a call without a tag."""

    def reply(self, lark: Lark, wanted: ReplySpec, *, in_reasoning: bool) -> str:
        bodies = [] if wanted.schema is None else [lark.json(wanted.schema)]
        section = None
        if self.calls is not None and wanted.tools:
            section = self.calls.section(lark, wanted.tools, parallel=wanted.parallel)
            if not wanted.text or not section.opener:
                bodies.append(self._calls(lark, section, parallel=wanted.parallel))
        if wanted.text:
            bodies.append(self._text(lark, section, parallel=wanted.parallel))
        return chain(self._thinking(lark, in_reasoning=in_reasoning), lark.one_of(bodies))

    def _calls(self, lark: Lark, section: Section, *, parallel: bool) -> str:
        """Calls and nothing else."""
        assert self.calls is not None, "a section is written by the format's grammar"
        body = chain(lark.text(section.opener), section.body)
        if not parallel or self.calls.separator is None:
            return body
        return lark.repeated(lark.rule(body), self.calls.separator)

    def _text(self, lark: Lark, section: Section | None, *, parallel: bool) -> str:
        """Text in which each opening tag begins a call."""
        if section is None:
            return f"{lark.rule('/(?s:.+)/', is_terminal=True)}?"
        if not section.opener:  # what begins otherwise is no call, wherever it goes
            return lark.rule(f"/[^{regex_of(self.starts)}\\s](?s:.*)/", is_terminal=True) + "?"
        tail = f"{lark.without(section.opener)}?"
        called = f"{lark.upto(section.opener)} {section.body}"
        return f"({called})* {tail}" if parallel else f"({called} | {tail})"

    def _thinking(self, lark: Lark, *, in_reasoning: bool) -> str:
        if not in_reasoning and not self.splits_reasoning:
            return ""
        gap = lark.rule(r"/\n{1,2}/", is_terminal=True)
        thought = f"{lark.upto(THINK_CLOSE)} {gap}?"
        return thought if in_reasoning else f"({lark.text(THINK_OPEN)} {thought})?"
