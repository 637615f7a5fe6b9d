"""Spans of a loop's own functions, under the names that verl's loops know.

Knows: functions.  Knows not: where traces go.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ludus.trace.spans import span

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def rollout_trace_op(function: FunctionT) -> FunctionT:
    """The function, whose calls are spans of the episode that is playing."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    names = tuple(inspect.signature(function).parameters)

    def inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return {key: value for key, value in given.items() if key not in ("self", "cls")}

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def traced(*args: Any, **kwargs: Any) -> Any:
            with span("op", name, inputs=inputs(args, kwargs)) as record:
                record.outputs = await function(*args, **kwargs)
                return record.outputs

        return traced  # type: ignore[return-value]  # the same signature

    @functools.wraps(function)
    def traced_at_once(*args: Any, **kwargs: Any) -> Any:
        with span("op", name, inputs=inputs(args, kwargs)) as record:
            record.outputs = function(*args, **kwargs)
            return record.outputs

    return traced_at_once  # type: ignore[return-value]  # the same signature


@contextmanager
def rollout_trace_attr(**attributes: Any) -> Iterator[None]:
    """The block as a span with these attributes. Step, sample and group are known of every episode without it."""
    with span("op", str(attributes.get("name", "rollout")), inputs=attributes):
        yield
