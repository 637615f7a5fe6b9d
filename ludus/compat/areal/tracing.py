"""AReaL's tracing functions: each timed block becomes a span of the current episode.

Knows: names of blocks.  Knows not: where traces go.
Outside of an episode nothing is recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from functools import wraps
from typing import Any

from ludus.compat.members import takes
from ludus.runs.spans import span

_KIND = "areal"


class Category(StrEnum):
    """AReaL's categories of blocks; accepted without effect."""

    COMPUTE = "compute"
    COMM = "comm"
    IO = "io"
    SYNC = "sync"
    SCHEDULER = "scheduler"
    INSTR = "instr"
    MISC = "misc"


@takes("areal", "utils.perf_tracer.trace_scope")
@contextmanager
def trace_scope(
    name: str,
    *,
    category: Any = None,  # noqa: ARG001
    enable_profiler: bool = False,  # noqa: ARG001
    profiler_args: Any = None,  # noqa: ARG001
    args: Any = None,
) -> Iterator[None]:
    """Record the block as a span. args: stored with it."""
    with span(_KIND, name, inputs=args):
        yield


@asynccontextmanager
async def atrace_scope(
    name: str, *, category: Any = None, enable_profiler: bool = False, profiler_args: Any = None, args: Any = None
) -> AsyncIterator[None]:
    """As `trace_scope`."""
    how = {"category": category, "enable_profiler": enable_profiler, "profiler_args": profiler_args}
    with trace_scope(name, args=args, **how):
        yield


@contextmanager
def trace_session_phase(phase: str, *, start_payload: Any = None, end_payload: Any = None) -> Iterator[None]:
    """Record a phase of the episode, such as `reward`, as a span. Payloads are stored with it."""
    payloads = {"start_payload": start_payload, "end_payload": end_payload}
    with span(_KIND, phase, inputs={name: value for name, value in payloads.items() if value is not None} or None):
        yield


@asynccontextmanager
async def atrace_session_phase(
    phase: str, *, start_payload: Any = None, end_payload: Any = None
) -> AsyncIterator[None]:
    """As `trace_session_phase`."""
    with trace_session_phase(phase, start_payload=start_payload, end_payload=end_payload):
        yield


@takes("areal", "utils.perf_tracer.trace_perf")
def trace_perf(name: str, *, category: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # noqa: ARG001
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


def trace_session(phase: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that times a phase of the episode."""
    return trace_perf(phase)


def session_context() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator without effect, as every episode is a session anyway."""
    return trace_perf("session")
