"""Which tag of a template wrote a piece of its text, and which condition decided between two pieces.

Knows: Jinja's source and its syntax tree.  Knows not: messages, forks.
Invariant: the template is only watched, never changed: blanks inside a tag mean nothing to Jinja, so a line break put
behind the opening of every tag changes no text and gives every tag a line of its own.
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
"""Characters of a tag that are shown; longer ones are cut."""

Branch = tuple[int, int]
"""The line of a condition, and which of its branches."""


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag of the source."""

    line: int
    """From 1, in the source as its author wrote it."""
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
        """The text, piece by piece with the tag behind each; raises what the template raises."""
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
        """The condition of which one line is in another branch than the other; else the tag of the new line.

        is_gone: what the old line wrote is missing now, so that the new line is somewhere else altogether.
        """
        old, new = self._branches.get(old_line, ()), self._branches.get(new_line, ())
        if is_gone and old and old != new:
            return self.tag(old[-1][0])
        for idx, branch in enumerate(new):
            if idx >= len(old) or old[idx] != branch:
                return self.tag(branch[0])
        return self.tag(old[len(new)][0] if len(old) > len(new) else new_line)

    def tag(self, line: int) -> Tag | None:
        """The tag behind a line of the spread source. None: text before the first tag."""
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
        """Where the piece ends that holds character number `char`."""
        ends = itertools.accumulate(map(len, self.pieces))
        return next((end for end in ends if char < end), char)

    def line_at(self, char: int) -> int:
        """The line that wrote character number `char`; behind the end, that of the last piece."""
        end = 0
        for piece, line in zip(self.pieces, self.lines, strict=True):
            end += len(piece)
            if char < end:
                return line
        return self.lines[-1] if self.lines else 0


def _spread(environment: jinja2.Environment, source: str) -> tuple[str, list[int], list[Tag]]:
    """The source with a line break behind the opening of every tag that is evaluated, and the line there of each."""
    parts: list[str] = []
    starts: list[int] = []
    tags: list[Tag] = []
    at, line, first_line, first_part = 0, 1, 1, 0
    for number, kind, value in environment.lex(source):
        end = source.index(value, at) + len(value)  # blanks before a tag that trims them are in no token
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
    """Modifies a tree: before it writes anything, it records the line. What is caught to be written later is left out:
    that is recorded of the tag that writes it."""

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
    """Each line of the tree, with the conditions around it from the outermost in."""
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
