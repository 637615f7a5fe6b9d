"""Sets context variables for the duration of a block, and for tasks started in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

ValueT = TypeVar("ValueT")


@contextmanager
def bound(variable: ContextVar[Any], value: ValueT) -> Iterator[ValueT]:
    """The variable is `value` until the block ends."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
