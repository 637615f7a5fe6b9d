"""A chat template whose loop over the messages can be taken up where an earlier rendering stood.

Knows: Jinja's syntax tree.  Knows not: messages, tokens, what is said.
Invariant: a resumed rendering is the rendering from the start, character by character. What cannot be proven so from
the template's source and from what its loop reads is rendered from the start.

    rendering of k messages       opening │ round 0 … round k-2 │ round k-1 │ closing
    of more, resumed at k-1       opening │     (kept text)     │ round k-1 │ round k … │ closing

A round may read its message, what comes before it, the one message after it (`loop.last`, `loop.nextitem`), and names
from outside the loop. The opening and those names are computed anew and compared; so the rounds that are kept can
differ only if a message did, which the caller rules out. Their count stops one short: the last round has looked for a
message that was not there yet. Loops that change a namespace, or look further ahead, cannot be resumed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

# Names that the rewritten template asks for; Jinja's own rules let no template author set them by accident.
_ENTER, _ROUND, _ITEM, _BEFORE, _SKIPPED = (
    f"_ludus_{name}" for name in ("enter", "round", "item", "before", "num_skipped")
)
_LOOP = "loop"
# Functions that give the same for the same arguments; the other globals count, draw lots or read the clock.
_PURE_GLOBALS = ("range", "dict", "namespace", "raise_exception")
_IMPURE_FILTERS = frozenset({"random"})
_SCALARS = (str, bool, int, float)
_LOOK_AHEAD = frozenset({"last", "nextitem"})
# What a round may be made of. A node that is not named here might read or change what nobody looks at.
_KNOWN_NODES: tuple[type[nodes.Node], ...] = (
    *(nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign, nodes.AssignBlock, nodes.FilterBlock),
    *(nodes.With, nodes.Scope, nodes.ExprStmt, nodes.Break, nodes.Continue),
    *(nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Concat),
    *(nodes.Compare, nodes.Operand, nodes.BinExpr, nodes.UnaryExpr, nodes.Slice, nodes.Call, nodes.Filter),
    *(nodes.Test, nodes.Getattr, nodes.Getitem, nodes.Name),
)


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Where a rendering can be taken up by one whose messages begin with its own."""

    num_rounds: int
    """Rounds whose text stays."""
    num_chars: int
    """Text up to the end of those rounds."""
    num_opening_chars: int
    """Text before the loop."""
    offset: int
    """Messages that the loop does not get, because the template took them off the front."""
    outside: tuple[object, ...]
    """The values of the names outside the loop that it reads."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a template made of some messages."""

    text: str
    bookmark: Bookmark | None
    """None: it cannot be resumed."""
    num_kept: int = 0
    """Messages whose text was taken from the earlier rendering."""


@dataclass(frozen=True)
class ResumableTemplate:
    """A compiled template whose loop can begin in the middle, if it has one that can. Safe to share between threads."""

    compiled: jinja2.Template
    attributes: tuple[frozenset[str] | None, ...]
    """Of each name from outside, those that the loop reads. None: it reads the name as a whole."""
    not_resumable: tuple[str, ...] = ()
    """Why no loop can, one reason for each, the last loop first. Empty: one can."""

    @classmethod
    def of(cls, environment: jinja2.Environment, source: str) -> ResumableTemplate:
        tree = environment.parse(source)
        reasons = []
        for loop in reversed(list(_loops(tree.body))):
            try:
                reads = _Reads.of(loop, tree)
            except _RefusedError as error:
                reasons.append(str(error))
                continue
            _rewrite(loop, reads)
            tree.set_environment(environment)
            return cls(environment.from_string(tree), tuple(reads.outside.values()))
        return cls(environment.from_string(source), (), tuple(reasons) or ("it has no loop over the messages",))

    def render(
        self, values: Mapping[str, Any], *, earlier_text: str = "", bookmark: Bookmark | None = None
    ) -> Rendering:
        """The rendering of `values["messages"]`.

        earlier_text, bookmark: of a rendering whose messages equal the first of these. Raises what the template does.
        """
        if self.not_resumable:
            return Rendering(self.compiled.render(values), None)
        if bookmark is not None:
            try:
                return self._run(values, earlier_text, bookmark)
            except _StaleError:
                pass
        return self._run(values, "", None)

    def _run(self, values: Mapping[str, Any], earlier_text: str, bookmark: Bookmark | None) -> Rendering:
        run = _Run(self.compiled.environment, values["messages"], self.attributes, earlier_text, bookmark)
        run.take(self.compiled.root_render_func(self.compiled.new_context({**values, **run.names})))
        return Rendering(run.text, run.bookmark, run.num_skipped)


class _StaleError(Exception):
    """The earlier rendering cannot be taken up."""


class _NotPlainError(Exception):
    """A value that cannot be compared by what it holds."""


@dataclass(eq=False)
class _Run:
    """One rendering on its way."""

    environment: jinja2.Environment
    messages: list[Any]
    attributes: Sequence[frozenset[str] | None]
    earlier_text: str
    resumed: Bookmark | None

    def __post_init__(self) -> None:
        self.num_skipped = 0 if self.resumed is None else self.resumed.num_rounds
        self._pieces: list[str] = []
        self._num_chars = 0
        self._looped: list[Any] = []
        self._opening: tuple[int, int, tuple[object, ...]] | None = None
        """Characters before the loop, offset and outside values. None: the loop cannot be resumed later."""
        self._round = self.num_skipped - 1
        self._num_chars_before_round = 0

    @property
    def names(self) -> Mapping[str, Any]:
        return {
            _ENTER: self._enter,
            _ROUND: self._begin_round,
            _ITEM: self._item,
            _BEFORE: self._before,
            _SKIPPED: self.num_skipped,
        }

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def bookmark(self) -> Bookmark | None:
        if self._opening is None or self._round < 0:
            return None
        num_opening_chars, offset, outside = self._opening
        return Bookmark(self._round, self._num_chars_before_round, num_opening_chars, offset, outside)

    def take(self, pieces: Iterator[str]) -> None:
        for piece in pieces:
            self._pieces.append(piece)
            self._num_chars += len(piece)
        if self.resumed is not None and self._opening is None:
            raise _StaleError  # the loop was not entered, or it was seen to look around

    def _enter(self, looped: Any, *outside: Any) -> Any:
        """What the loop goes over; called once, before its first round."""
        offset = len(self.messages) - len(looped) if type(looped) is list else -1
        if offset >= 0 and all(map(operator.is_, looped, self.messages[offset:])):
            try:
                found = tuple(map(self._frozen, outside, self.attributes))
            except _NotPlainError:
                pass
            else:
                self._opening = (self._num_chars, offset, found)
                self._looped = looped
        if self.resumed is None:
            return looped
        self._skip(self.resumed)
        return looped[self.num_skipped :]

    def _skip(self, resumed: Bookmark) -> None:
        kept = (resumed.num_opening_chars, resumed.offset, resumed.outside)
        if self._opening != kept or len(self._looped) <= resumed.num_rounds:
            raise _StaleError
        if not self.earlier_text.startswith(self.text):
            raise _StaleError
        self._pieces = [self.earlier_text[: resumed.num_chars]]
        self._num_chars = resumed.num_chars

    def _frozen(self, value: Any, attributes: frozenset[str] | None) -> object:
        """As `_plain`, of a namespace those of its attributes that are read."""
        if type(value) in _SCALARS:
            return _plain(value)
        if any(value is self.environment.globals.get(name) for name in _PURE_GLOBALS):
            return value
        if attributes is not None and isinstance(value, Namespace):
            return tuple([(name, _plain(getattr(value, name, Undefined()))) for name in sorted(attributes)])
        return _plain(value)

    def _begin_round(self) -> str:
        self._round += 1
        self._num_chars_before_round = self._num_chars
        return ""

    def _item(self, items: Any, at: Any) -> Any:
        """`items[at]`, where items is what the loop goes over; beyond the next message it is no longer local."""
        if type(at) is not int or not 0 <= at <= self._round + 1:
            self._opening = None
        return self.environment.getitem(items, at)

    def _before(self, previous: Any) -> Any:
        """`loop.previtem`, in the first round that is not skipped too."""
        is_first = self.num_skipped > 0 and self._round == self.num_skipped
        return self._looped[self.num_skipped - 1] if is_first else previous


def is_own(function: Any) -> bool:
    """Whether the function is one that the rewritten template asks for, not one of the template's author."""
    return type(function) is MethodType and type(function.__self__) is _Run


def _plain(value: Any) -> object:
    """`value` such that equal means equal in every type and in order. Raises _NotPlainError if it is no plain data."""
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return kind, value
    if kind is float:
        return kind, repr(value)
    if kind is list or kind is tuple:
        return kind, tuple(map(_plain, value))
    if kind is dict:
        return kind, tuple([(_plain(key), _plain(item)) for key, item in value.items()])
    if isinstance(value, Undefined):
        return Undefined
    raise _NotPlainError


# What does a loop read?


class _RefusedError(Exception):
    """A loop that does, or might do, what a resumed one cannot repeat."""


def _refused(node: nodes.Node, reason: str) -> _RefusedError:
    return _RefusedError(f"line {node.lineno}: {reason}")


def _loops(body: Sequence[nodes.Node]) -> Iterator[nodes.For]:
    """The loops that write into the template's output itself, outermost only."""
    for node in body:
        if isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.If):
            yield from _loops([*node.body, *node.elif_, *node.else_])


@dataclass(eq=False)
class _Reads:
    """What the rounds of one loop read from outside."""

    items: str
    """Name of what the loop goes over."""
    macros: Mapping[str, nodes.Macro]
    outside: dict[str, frozenset[str] | None] = field(default_factory=dict)
    """By name the attributes that are read of it; None: it is read as a whole."""
    loop_attributes: list[nodes.Getattr] = field(default_factory=list)
    lookups: list[nodes.Getitem] = field(default_factory=list)
    """`items[…]`"""
    _seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, loop: nodes.For, tree: nodes.Template) -> _Reads:
        """Raises _RefusedError."""
        if not isinstance(loop.target, nodes.Name) or not isinstance(loop.iter, nodes.Name):
            raise _refused(loop, "the loop goes over more than one name")
        if loop.test is not None or loop.else_ or loop.recursive:
            raise _refused(loop, "the loop has a condition, an else or calls itself")
        macros = {node.name: node for node in tree.body if isinstance(node, nodes.Macro)}
        stored = [name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"]
        defined = [macro.name for macro in tree.find_all(nodes.Macro)]
        known = {name: macro for name, macro in macros.items() if defined.count(name) == 1 and name not in stored}
        reads = cls(loop.iter.name, known)
        for node in loop.body:
            reads._scan(node, in_loop=True)
        if seen := sorted(reads.outside.keys() & {reads.items, "messages"}):
            raise _refused(loop, f"a round reads {seen[0]!r} as a whole, so messages that are still to come")
        return reads

    def _scan(self, node: nodes.Node, *, in_loop: bool) -> None:
        """in_loop: `loop` is the loop itself, not one inside it."""
        if isinstance(node, nodes.NSRef):
            raise _refused(node, f"a round writes into {node.name}.{node.attr}, which later rounds read")
        if not isinstance(node, _KNOWN_NODES) or (isinstance(node, nodes.Filter) and node.name in _IMPURE_FILTERS):
            raise _refused(node, f"a round holds a {type(node).__name__}, which may not be the same each time")
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
            self._scan_attribute(node, node.node.name, in_loop=in_loop)
        elif isinstance(node, nodes.Getitem) and self._is_lookup(node):
            self.lookups.append(node)
            self._scan(node.arg, in_loop=in_loop)
        elif isinstance(node, nodes.For):
            self._scan(node.iter, in_loop=in_loop)
            for inner in (node.target, node.test, *node.body, *node.else_):
                if inner is not None:
                    self._scan(inner, in_loop=False)
        elif isinstance(node, nodes.Name):
            self._scan_name(node, in_loop=in_loop)
        else:
            for child in node.iter_child_nodes():
                self._scan(child, in_loop=in_loop)

    def _is_lookup(self, node: nodes.Getitem) -> bool:
        of_items = isinstance(node.node, nodes.Name) and node.node.name == self.items
        return of_items and not isinstance(node.arg, nodes.Slice)

    def _scan_attribute(self, node: nodes.Getattr, name: str, *, in_loop: bool) -> None:
        if name != _LOOP:
            if self.outside.get(name, frozenset()) is not None:
                self.outside[name] = (self.outside.get(name) or frozenset()) | {node.attr}
        elif in_loop and node.attr in _REWRITTEN:
            self.loop_attributes.append(node)
        elif in_loop and node.attr not in _LOOK_AHEAD:
            raise _refused(node, f"a round reads loop.{node.attr}")

    def _scan_name(self, node: nodes.Name, *, in_loop: bool) -> None:
        if node.name == _LOOP and not in_loop:
            return
        if node.name == _LOOP or (node.ctx != "load" and node.name == self.items):
            raise _refused(node, f"a round passes on or changes {node.name!r}")
        if node.name in self.macros:
            self._scan_macro(node.name)
        elif node.ctx == "load":
            self.outside[node.name] = None

    def _scan_macro(self, name: str) -> None:
        if name not in self._seen:
            self._seen.add(name)
            macro, num_lookups = self.macros[name], len(self.lookups)
            for node in (*macro.defaults, *macro.body):
                self._scan(node, in_loop=False)
            if len(self.lookups) > num_lookups:
                raise _refused(macro, f"the macro {name!r} looks at other messages")


# The same loop, able to begin later


def _own(name: str) -> nodes.Name:
    return nodes.Name(name, "load")


def _call(name: str, *args: nodes.Expr) -> nodes.Expr:
    return nodes.Call(_own(name), list(args), [], None, None)


def _since_start(own: nodes.Getattr) -> nodes.Expr:
    return nodes.Add(own, _own(_SKIPPED))


_REWRITTEN: Mapping[str, Callable[[nodes.Getattr], nodes.Expr]] = {
    "index0": _since_start,
    "index": _since_start,
    "first": lambda own: nodes.And(own, nodes.Compare(_own(_SKIPPED), [nodes.Operand("eq", nodes.Const(0))])),
    "previtem": lambda own: _call(_BEFORE, own),
}
"""What stands for an attribute of the loop."""


def _rewrite(loop: nodes.For, reads: _Reads) -> None:
    """Modifies `loop`: it counts from the start of the messages, wherever it begins."""
    own = {id(node) for node in (*reads.loop_attributes, *reads.lookups)}
    for node in loop.body:
        _exchange(node, own)
    assert isinstance(loop.iter, nodes.Name), "only loops over a name are rewritten"
    loop.iter = _call(_ENTER, loop.iter, *map(_own, reads.outside))
    loop.body.insert(0, nodes.Output([_call(_ROUND)]))
    loop.set_lineno(loop.lineno)


def _exchange(node: nodes.Node, own: Collection[int]) -> None:
    """Exchanges the nodes whose ids are `own` for such as count from the start."""
    for name, value in node.iter_fields():
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, nodes.Node):
                _exchange(child, own)
        new = [_counted(child) if id(child) in own else child for child in children]
        setattr(node, name, new if isinstance(value, list) else new[0])


def _counted(node: nodes.Getattr | nodes.Getitem) -> nodes.Expr:
    return _REWRITTEN[node.attr](node) if isinstance(node, nodes.Getattr) else _call(_ITEM, node.node, node.arg)
