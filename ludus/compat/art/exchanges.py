"""Requests to models and their answers, passed to the listeners where they were made.

Knows: one context variable.  Knows not: HTTP, trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

OnExchange = Callable[[Mapping[str, Any], Mapping[str, Any]], None]
"""Told the body of a chat completion request and of its whole answer, streamed or not."""

_listeners: ContextVar[tuple[OnExchange, ...]] = ContextVar("ludus_exchanges", default=())


@contextmanager
def listening(listener: OnExchange) -> Iterator[None]:
    """Exchanges of the block, and of the tasks begun in it, are passed to `listener` too."""
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


def exchange_listeners() -> tuple[OnExchange, ...]:
    """Who wants to be told of an exchange that is made here."""
    return _listeners.get()
