"""A fault: what is wrong, the part of the server that it changes, and the cases that should detect it.

Knows: the parts of the server.  Knows not: which faults exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ludus.checks.conformance.case import law_of
from ludus.checks.conformance.local_server import ServerParts
from ludus.checks.conformance.rewrite import Json, Rewrite, RewritingApp, each_json, put
from ludus.checks.conformance.words import WORDS

Change = Callable[[Any], Any]
PATHS = {protocol: words.path for protocol, words in WORDS.items()}


@dataclass(frozen=True, slots=True)
class Fault:
    """A server with one fault."""

    name: str
    effect: str
    """A description of the fault."""
    parts: ServerParts
    near: tuple[str, ...]
    """Prefixes of the cases to run first; the others follow if these do not detect the fault."""


def everywhere(name: str, effect: str, *near: str, **how: Any) -> Fault:
    """A fault between the application and the socket. how: fields of `Rewrite`."""
    rewrite = Rewrite(**how)
    return Fault(name, effect, ServerParts(app=lambda app: RewritingApp(app, rewrite)), near)


def wire(name: str, effect: str, *near: str, **how: Any) -> Fault:
    """As `everywhere`, but only on the path of the first case's protocol; error cases apply to every path."""
    return everywhere(name, effect, *near, **{"path": PATHS.get(near[0].partition("/")[0], ""), **how})


def answer(name: str, effect: str, near: str, at: str, new: Any, **how: Any) -> Fault:
    """Replace the value at a path in every answer that is not streamed. new: as for `put`."""
    return wire(name, effect, near, body=put(at, new), **how)


def event(name: str, effect: str, near: str, at: str, new: Any, *kinds: str) -> Fault:
    """The same in every event of these kinds."""
    return wire(name, effect, near, events=each_json(put(at, new, *kinds)))


def answers(name: str, near: str, at: str, **how: Any) -> Callable[[Change], Fault]:
    """The same by the function below it, whose docstring describes it."""
    return lambda new: answer(name, law_of(new), near, at, new, **how)


def events(name: str, near: str, at: str, *kinds: str) -> Callable[[Change], Fault]:
    """The same in every event of these kinds."""
    return lambda new: event(name, law_of(new), near, at, new, *kinds)


def without(name: str, effect: str, near: str, is_dropped: Callable[[Json], object]) -> Fault:
    """Some events are missing."""
    return wire(name, effect, near, events=each_json(lambda event: None if is_dropped(event) else event))


def unread(name: str, effect: str, field: str, *near: str) -> Fault:
    """A field of requests is not read."""
    return wire(name, effect, *near, request=lambda asked: {key: asked[key] for key in asked if key != field})
