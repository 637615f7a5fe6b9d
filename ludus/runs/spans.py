"""Spans: what happens in an episode besides the model's answers, such as tool calls and rewards.

Knows: time, one context variable.  Knows not: agents, tools, exporters.
Invariant: every span that was begun is logged in its episode, however its block ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ludus.types import Span


class SpanLog:
    """The spans of one episode, in order of their ends. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Span] = []

    def add(self, span: Span) -> None:
        with self._lock:
            self._spans.append(span)

    def snapshot(self) -> tuple[Span, ...]:
        with self._lock:
            return tuple(self._spans)


@dataclass
class OpenSpan:
    """A span that has not ended; what is set on it is recorded."""

    kind: str
    name: str
    started_at: float
    inputs: Any = None
    outputs: Any = None
    error: str | None = None
    """None: it did not fail."""
    turn_id: str | None = None
    """The turn it belongs to, if any."""
    metrics: dict[str, float] = field(default_factory=dict)


_LOG: ContextVar[SpanLog | None] = ContextVar("ludus_spans", default=None)


@contextmanager
def collect_spans(log: SpanLog) -> Iterator[None]:
    """Record spans of the block, and of tasks and threads started in it, in `log`."""
    token = _LOG.set(log)
    try:
        yield
    finally:
        _LOG.reset(token)


@contextmanager
def span(kind: str, name: str, *, inputs: Any = None) -> Iterator[OpenSpan]:
    """Times the block as a span of the current episode; outside an episode nothing is recorded.

    kind: `tool`, `reward`, or the agent's own term.  An error in the block is recorded in the span, and raised.
    """
    log, begun = _LOG.get(), OpenSpan(kind, name, time.time(), inputs)
    try:
        yield begun
    except BaseException as error:
        begun.error = begun.error or f"{type(error).__name__}: {error}"
        raise
    finally:
        if log is not None:
            log.add(Span(**vars(begun), finished_at=time.time()))
