"""What AReaL's workflows time: each is a span of the episode that plays, in its trace.

Knows: names of what is timed.  Knows not: where traces go.
Outside of an episode nothing is kept.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import Any

from ludus.runs.spans import span

_KIND = "areal"


@contextmanager
def trace_scope(name: str, **details: Any) -> Iterator[None]:
    """Times the block. details: `args` are kept with it; AReaL's others said what its profiler does."""
    with span(_KIND, name, inputs=details.get("args")):
        yield


@asynccontextmanager
async def atrace_scope(name: str, **details: Any) -> AsyncIterator[None]:
    """As `trace_scope`."""
    with trace_scope(name, **details):
        yield


@contextmanager
def trace_session_phase(phase: str, **payloads: Any) -> Iterator[None]:
    """Times a phase of the episode, such as `reward`. payloads: kept with it."""
    with span(_KIND, phase, inputs=payloads or None):
        yield


@asynccontextmanager
async def atrace_session_phase(phase: str, **payloads: Any) -> AsyncIterator[None]:
    """As `trace_session_phase`."""
    with trace_session_phase(phase, **payloads):
        yield


def trace_perf(name: str, **_: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that times each call of a function, async or not."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def timed_async(*args: Any, **kwargs: Any) -> Any:
                with span(_KIND, name):
                    return await function(*args, **kwargs)

            return timed_async

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with span(_KIND, name):
                return function(*args, **kwargs)

        return timed

    return decorate


trace_session = trace_perf
"""A decorator that times a phase of the episode."""
