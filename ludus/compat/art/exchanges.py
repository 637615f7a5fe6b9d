"""Requests to models and their answers, passed to the listeners where they were made.

Knows: one context variable.  Knows not: HTTP, trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from ludus.compat.art.context import bound

OnExchange = Callable[[Mapping[str, Any], Mapping[str, Any]], None]
"""Called with the body of a chat completion request and of its whole answer, streamed or not."""

_listeners: ContextVar[tuple[OnExchange, ...]] = ContextVar("ludus_exchanges", default=())


def listening(listener: OnExchange) -> AbstractContextManager[object]:
    """Exchanges of the block, and of the tasks begun in it, are passed to `listener` too."""
    return bound(_listeners, (*_listeners.get(), listener))


def exchange_listeners() -> tuple[OnExchange, ...]:
    """Those that an exchange which is made here is passed to."""
    return _listeners.get()
