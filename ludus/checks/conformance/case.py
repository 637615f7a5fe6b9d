"""Cases: a rule that must hold on the wire, its cell in the matrix, and the function that tests it.

Knows: names.  Knows not: servers, SDKs.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args

from ludus.checks.conformance.probe import Probe

Protocol = Literal["chat", "responses", "messages", "completions", "models", "errors", "sessions"]
OfAnswers = Literal["text", "streaming", "tools", "forced tools", "structured output", "reasoning", "logprobs"]
OfRequests = Literal["sampling fields", "stop", "n", "limits", "errors"]
OfServers = Literal["headers", "count_tokens", "retries", "unicode", "keys", "records"]
Topic = OfAnswers | OfRequests | OfServers
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
TOPICS: tuple[Topic, ...] = (*get_args(OfAnswers), *get_args(OfRequests), *get_args(OfServers))
Found = TypeVar("Found")
Body = Callable[[Probe], Awaitable[None]]

# Reasons why a case is run on the local server only.
SCRIPT = "needs an answer that is written down"
RECORD = "needs the token record behind the answer"
EXTENSION = "a header, field or code of Ludus"
SESSIONS = "sessions of Ludus"


@dataclass(frozen=True, slots=True)
class Case:
    """A rule ("law"), and how it is tested."""

    protocol: Protocol
    topic: Topic
    law: str
    run: Body
    ours: str | None = None
    """Why it is not run on other servers. None: it applies to every server of the protocol."""
    title: str = ""
    """Last part of its name; '': the name of the function."""
    turns: int | None = None
    """Required number of turns in its session at the end. None: any number."""

    @property
    def name(self) -> str:
        """Such as `chat/tools/two_calls`."""
        return f"{self.protocol}/{self.topic}/{self.title or self.run.__name__}".replace(" ", "-")


def case(protocol: Protocol, topic: Topic, **how: Any) -> Callable[[Body], Case]:
    """Makes a Case of the function below it, whose docstring is the law. how: its further fields."""
    return lambda body: Case(protocol, topic, law_of(body), body, **how)


def law(name: str, protocols: str, **how: Any) -> Callable[[Body], tuple[Case, ...]]:
    """Makes a Case for each protocol of the function below it, whose docstring is the law.

    name: topic and last part of the cases' names, as in `text/usage`; a protocol may have another last part, as in
    `chat=max_tokens`. how: further fields of the cases.
    """
    topic, _, common = name.partition("/")
    titles = [spec.partition("=") for spec in protocols.split()]
    return lambda body: tuple(
        named(f"{protocol} {topic}/{title or common}", law_of(body), body, **how) for protocol, _, title in titles
    )


def named(name: str, law: str, body: Body, **how: Any) -> Case:
    """The Case of a row in a table. name: such as `chat n/two_choices`."""
    protocol: Any
    topic: Any
    protocol, _, rest = name.partition(" ")
    topic, _, title = rest.partition("/")
    return Case(protocol, topic, law, body, title=title, **how)


def law_of(body: Callable[..., object]) -> str:
    """The docstring of `body` without its full stop."""
    return (body.__doc__ or "").removesuffix(".")


def found(kind: type[Found], *files: ModuleType) -> tuple[Found, ...]:
    """All objects of a type that the modules define, including those in tables, in order of definition."""
    values = [value for file in files for value in vars(file).values()]
    tables = [value for value in values if isinstance(value, tuple)]
    return tuple(value for value in (*values, *itertools.chain(*tables)) if isinstance(value, kind))
