"""Traces which tag of a template wrote a piece of text, and which condition chose between two pieces.

Knows: Jinja's source and its syntax tree.  Knows not: messages, forks.
Invariant: the template's output is unchanged: whitespace inside a tag has no meaning in Jinja, so a line break after
the opening of every tag changes no text, and gives every tag its own line number.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_NOTE = "_ludus_note"
_MOST_SHOWN = 200
"""Characters of a tag that are shown; longer tags are cut."""

Branch = tuple[int, int]
"""The line of a condition, and the index of its branch."""


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag of the source."""

    line: int
    """Line number, from 1, in the original source."""
    text: str


class WatchedTemplate:
    """A template that records which of its tags wrote what."""

    def __init__(self, environment: jinja2.Environment, source: str) -> None:
        spread, self._starts, self._tags = _spread(environment, source)
        tree = environment.parse(spread)
        self._branches = dict(_branches(tree, ()))
        _LineNoter().visit(tree)
        tree.set_environment(environment)
        self._compiled = environment.from_string(tree)

    def render(self, values: Mapping[str, Any]) -> Writing:
        """The text in pieces, each with its tag. Raises what the template raises."""
        pieces: list[str] = []
        lines: list[int] = []
        now = [0]

        def note(line: int) -> str:
            now[0] = line
            return ""

        for piece in self._compiled.root_render_func(self._compiled.new_context({**values, _NOTE: note})):
            if piece:
                pieces.append(piece)
                lines.append(now[0])
        return Writing(tuple(pieces), tuple(lines))

    def decider(self, old_line: int, new_line: int, *, is_gone: bool = False) -> Tag | None:
        """The condition that has the two lines in different branches; else the tag of the new line.

        is_gone: the text of the old line is missing now, so the new line is unrelated to it.
        """
        old, new = self._branches.get(old_line, ()), self._branches.get(new_line, ())
        if is_gone and old and old != new:
            return self.tag(old[-1][0])
        for idx, branch in enumerate(new):
            if idx >= len(old) or old[idx] != branch:
                return self.tag(branch[0])
        return self.tag(old[len(new)][0] if len(old) > len(new) else new_line)

    def tag(self, line: int) -> Tag | None:
        """The tag at a line of the spread source. None: text before the first tag."""
        at = bisect.bisect_right(self._starts, line) - 1
        return self._tags[at] if at >= 0 else None


@dataclass(frozen=True, slots=True)
class Writing:
    """A text, and the line of the watched source that wrote each piece of it."""

    pieces: tuple[str, ...]
    lines: tuple[int, ...]

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def end_of_piece(self, char: int) -> int:
        """Index of the end of the piece that contains character `char`."""
        ends = itertools.accumulate(map(len, self.pieces))
        return next((end for end in ends if char < end), char)

    def line_at(self, char: int) -> int:
        """The line that wrote character `char`; after the end, that of the last piece."""
        end = 0
        for piece, line in zip(self.pieces, self.lines, strict=True):
            end += len(piece)
            if char < end:
                return line
        return self.lines[-1] if self.lines else 0


def _spread(environment: jinja2.Environment, source: str) -> tuple[str, list[int], list[Tag]]:
    """The source with a line break after the opening of every evaluated tag, the line of each tag there, and the
    tags."""
    parts: list[str] = []
    starts: list[int] = []
    tags: list[Tag] = []
    at, line, first_line, first_part = 0, 1, 1, 0
    for number, kind, value in environment.lex(source):
        end = source.index(value, at) + len(value)  # whitespace before a trimming tag is in no token
        parts.append(source[at:end])
        line += parts[-1].count("\n")
        at = end
        if kind in ("block_begin", "variable_begin"):
            first_line, first_part = number, len(parts) - 1
            parts.append("\n")
            line += 1
            starts.append(line)
        elif kind in ("block_end", "variable_end"):
            words = " ".join("".join(parts[first_part:]).split())
            tags.append(Tag(first_line, words if len(words) <= _MOST_SHOWN else words[: _MOST_SHOWN - 1] + "…"))
    return "".join(parts), starts, tags


class _LineNoter(NodeTransformer):
    """Transforms a tree so that it records the line before each output. Captured output is skipped, as it is recorded
    for the tag that writes it."""

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:  # noqa: N802  # named after the node
        parts: list[nodes.Node] = []
        for written in node.nodes:
            note = nodes.Call(nodes.Name(_NOTE, "load"), [nodes.Const(written.lineno)], [], None, None)
            parts += [nodes.Output([note]), nodes.Output([written])]
        return [part.set_lineno(node.lineno) for part in parts]

    def visit_Macro(self, node: nodes.Node) -> nodes.Node:  # noqa: N802
        return node

    visit_CallBlock = visit_AssignBlock = visit_FilterBlock = visit_Macro


def _branches(node: nodes.Node, inside: tuple[Branch, ...]) -> Iterator[tuple[int, tuple[Branch, ...]]]:
    """Each line of the tree, with the enclosing conditions, the outermost first."""
    if isinstance(node, nodes.If):
        arms = [(node.test, node.body), *((other.test, other.body) for other in node.elif_), (None, node.else_)]
        yield node.lineno, inside
        for number, (test, body) in enumerate(arms):
            line = node.lineno if test is None else test.lineno
            for child in body:
                yield from _branches(child, (*inside, (line, number)))
        return
    if node.lineno is not None:
        yield node.lineno, inside
    for child in node.iter_child_nodes():
        yield from _branches(child, inside)
