"""Reports exchanges (requests to models and their answers) to listeners in the context of the request.

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
    """Report exchanges of the block, and of tasks started in it, to `listener` too."""
    return bound(_listeners, (*_listeners.get(), listener))


def exchange_listeners() -> tuple[OnExchange, ...]:
    """The listeners of the current context."""
    return _listeners.get()
