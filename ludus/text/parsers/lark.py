"""Grammars of calls in llguidance's form of Lark: what the parsers read, written down for a sampler to keep to.

Knows: Lark, JSON schemas, texts that are special tokens.  Knows not: which request wants which grammar.
Source of the syntax: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.types import ToolSpec

# A model that samples freely can write blanks for ever. So many between two tokens of JSON hold any usual indentation.
_MAX_BLANKS = 32
_JSON_OPTIONS = {"whitespace_pattern": rf"[ \t\n\r]{{0,{_MAX_BLANKS}}}", "coerce_one_of": True}
_HAS_MEANING = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")
"""Characters that a regular expression between slashes does not take as they are."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class ReplySpec:
    """What a reply may be, besides its thinking."""

    tools: tuple[ToolSpec, ...] = ()
    """Those it may call, with arguments that their schemas allow. Empty: it calls none."""
    parallel: bool = True
    """It may make several calls."""
    text: bool = False
    """It may be free text, with calls in it."""
    schema: Mapping[str, Any] | None = None
    """It may be JSON that this schema allows. None: it may not."""


ReplyGrammar = Callable[["Lark", ReplySpec, bool], str]
"""(lark, wanted, in_reasoning): a whole reply of one model as Lark, thinking included.

in_reasoning: the prompt opened the thinking.
"""


@dataclass(frozen=True)
class CallGrammar:
    """How one format writes calls, as Lark."""

    opener: str
    """What opens a section of calls. '': they have no tag, and stand at the start of an answer."""
    call: Callable[[Lark, ToolSpec], str]
    """One call, its arguments held to the tool's schema."""
    before: str = ""
    """Before the first call of a section."""
    between: str | None = None
    """Between two calls of one section. None: a section holds one."""
    after: str = ""
    """At the end of a section."""
    separator: str | None = None
    """Between two sections of one answer. None: all calls of an answer stand in one section."""

    def section(self, lark: Lark, tools: Sequence[ToolSpec], *, parallel: bool) -> str:
        """What follows the opening tag, closing tags included: calls of `tools`, one unless `parallel`."""
        body = lark.rule(lark.one_of([self.call(lark, tool) for tool in tools]))
        if parallel and self.between is not None:
            body = lark.repeated(body, self.between)
        return chain(lark.text(self.before), body, lark.text(self.after))


class Lark:
    """A grammar as it is written: rules with names of their own, texts and schemas as Lark has them."""

    def __init__(self, special_ids: Mapping[str, int]) -> None:
        """special_ids: text and id of every special token; no text of the grammar spells one otherwise."""
        self._special_ids = special_ids
        self._specials = sorted(special_ids, key=len, reverse=True)
        self._rules: list[str] = []

    def __str__(self) -> str:
        return "\n".join(["%llguidance {}", *self._rules, ""])

    def start(self, body: str) -> str:
        """The whole grammar, its answers being `body`."""
        self._rules.append(f"start: {body}")
        return str(self)

    def rule(self, body: str, *, is_terminal: bool = False, is_lazy: bool = False) -> str:
        """Name of a new rule with this body. Lazy: it ends as soon as it can. Terminal: it is a regular expression."""
        name = f"{'T' if is_terminal else 'r'}{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if is_lazy else ''}: {body}")
        return name

    def text(self, text: str) -> str:
        """Exactly this text. '' for no text."""
        parts: list[str] = []
        while text:
            found = [(at, special) for special in self._specials if (at := text.find(special)) >= 0]
            at, special = min(found, key=lambda hit: (hit[0], -len(hit[1])), default=(len(text), ""))
            if at:
                parts.append(json.dumps(text[:at], ensure_ascii=False))
            if special:
                parts.append(f"<[{self._special_ids[special]}]>")
            text = text[at + len(special) :]
        return " ".join(parts)

    def json(self, schema: Mapping[str, Any]) -> str:
        """JSON that the schema allows."""
        return "%json " + json.dumps({**schema, "x-guidance": _JSON_OPTIONS}, ensure_ascii=False)

    def one_of(self, bodies: Sequence[str]) -> str:
        return bodies[0] if len(bodies) == 1 else "(" + " | ".join(bodies) + ")"

    def repeated(self, body: str, separator: str = "") -> str:
        """Once or more often."""
        return f"{body} ({chain(self.text(separator), body)})*"

    def listed(self, items: Sequence[tuple[str, bool]], separator: str) -> str:
        """Items in this order, separated; those whose flag is False may be left out."""
        first: list[str] = []
        rest = '""'
        for body, is_needed in reversed(items):
            first = [f"{body} {rest}"] if is_needed else [f"{body} {rest}", *first]
            joined = f"{self.text(separator)} {body} {rest}"
            rest = self.rule(joined if is_needed else f"({joined}) | {rest}")
        if any(is_needed for _, is_needed in items):
            return self.one_of(first)
        return f"({self.one_of(first)})?" if first else '""'

    def upto(self, tag: str) -> str:
        """Any text up to the first `tag`, and that."""
        if tag in self._special_ids:
            return f"{self.rule('/(?s:.+)/', is_terminal=True)}? {self.text(tag)}"
        return self.rule(f"/(?s:.*){regex_of(tag)}/", is_lazy=True)

    def without(self, tag: str) -> str:
        """Any text but none, and without `tag`."""
        if tag in self._special_ids:
            return self.rule("/(?s:.+)/", is_terminal=True)
        return self.rule(f"/(?s:.+)/ & ~/(?s:.*){regex_of(tag)}(?s:.*)/", is_terminal=True)

    def matching(self, regexes: Sequence[str], tag: str, ends: str) -> str:
        """Text that all of `regexes` match, and then `tag`; the text does not contain `ends`, which ends `tag`."""
        if ends in self._special_ids:
            body = self.rule(" & ".join(f"/(?s:{regex})/" for regex in regexes), is_terminal=True)
            return f"{body} {self.text(tag)}"
        parts = [f"/(?s:{regex}){regex_of(tag)}/" for regex in regexes]
        return self.rule(" & ".join([*parts, f"~/(?s:.*){regex_of(ends)}(?s:.+)/"]), is_lazy=True)


def chain(*parts: str) -> str:
    """Lark of what follows one another; '' is nothing."""
    return " ".join(part for part in parts if part)


def regex_of(text: str) -> str:
    """The regular expression that matches exactly `text`, to stand between slashes."""
    return _HAS_MEANING.sub(lambda found: "\\" + found[0], text).replace("\n", "\\n")


def arguments_schema(tool: ToolSpec) -> Mapping[str, Any]:
    """The schema of the tool's arguments, which are an object whatever it says."""
    return {**tool.parameters, "type": "object"}


def framed(frame: str, close: str) -> Callable[[Lark, ToolSpec], str]:
    """Calls as the object of the arguments in a frame; '%s' stands for the name, '"%s"' for the name as JSON."""

    def call(lark: Lark, tool: ToolSpec) -> str:
        as_json = ('"%s"', json.dumps(tool.name, ensure_ascii=False))
        head = frame.replace(*(as_json if as_json[0] in frame else ("%s", tool.name)))
        return chain(lark.text(head), lark.json(arguments_schema(tool)), lark.text(close))

    return call


AN_OBJECT = framed('{"name": "%s", "arguments": ', "}")
"""Calls as objects, in the order in which most templates write them."""
