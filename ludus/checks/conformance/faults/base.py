"""One fault: what is wrong, the part of the server that has it, and the cases that should see it first.

Knows: the parts of the server.  Knows not: how they are changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ludus.checks.conformance.case import law_of
from ludus.checks.conformance.local_server import ServerParts
from ludus.checks.conformance.rewrite import Json, Rewrite, RewritingApp, each_json, put

PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A server that is wrong in one way."""

    name: str
    says: str
    """What it does, in words."""
    parts: ServerParts
    near: tuple[str, ...]
    """Beginnings of the names of the cases to run first; the others follow if these see nothing."""


def on_the_wire(name: str, says: str, rewrite: Rewrite, *near: str) -> Fault:
    """A fault between the application and the socket."""
    return Fault(name, says, ServerParts(app=lambda app: RewritingApp(app, rewrite)), near)


def answers(name: str, near: str, at: str) -> Callable[[Callable[[Any], Any]], Fault]:
    """In every answer at once the function below it exchanges what is at a path; its docstring says what is wrong."""
    return lambda new: on_the_wire(name, law_of(new), Rewrite(_path(near), body=put(at, new)), near)


def events(name: str, near: str, at: str, *kinds: str) -> Callable[[Callable[[Any], Any]], Fault]:
    """The same in every event of these kinds."""
    return lambda new: on_the_wire(
        name, law_of(new), Rewrite(_path(near), events=each_json(put(at, new, *kinds))), near
    )


def without(name: str, near: str) -> Callable[[Callable[[Json], object]], Fault]:
    """The events of which the function below it is true are missing; its docstring says so."""

    def make(is_dropped: Callable[[Json], object]) -> Fault:
        change = each_json(lambda event: None if is_dropped(event) else event)
        return on_the_wire(name, law_of(is_dropped), Rewrite(_path(near), events=change), near)

    return make


def unread(name: str, says: str, field: str, *near: str) -> Fault:
    """A field of requests is not read."""

    def request(asked: Json) -> Json:
        return {name: value for name, value in asked.items() if name != field}

    return on_the_wire(name, says, Rewrite(_path(near[0]), request=request), *near)


def _path(near: str) -> str:
    return PATHS.get(near.partition("/")[0], "")
