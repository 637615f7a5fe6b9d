"""What happens in an episode besides the model's answers: calls of tools, rewards, whatever an agent names.

Knows: time, one context variable.  Knows not: agents, tools, exporters.
Invariant: a span that was begun ends in its episode's log, however its block ends.
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
    """The spans of one episode, in the order in which they ended. Safe to use from several threads."""

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
    """A span while it lasts; what is set here is kept."""

    kind: str
    name: str
    started_at: float
    inputs: Any = None
    outputs: Any = None
    error: str | None = None
    """None: it did not fail."""
    turn_id: str | None = None
    """The turn it belongs to. None: to none in particular."""
    metrics: dict[str, float] = field(default_factory=dict)


_LOG: ContextVar[SpanLog | None] = ContextVar("ludus_spans", default=None)


@contextmanager
def collect_spans(log: SpanLog) -> Iterator[None]:
    """Spans of the block, and of the tasks and threads begun in it, go to `log`."""
    token = _LOG.set(log)
    try:
        yield
    finally:
        _LOG.reset(token)


@contextmanager
def span(kind: str, name: str, *, inputs: Any = None) -> Iterator[OpenSpan]:
    """Times the block as one span of the episode that is playing; outside of one it keeps nothing.

    kind: `tool`, `reward`, or a word of the agent's own.  What the block raises is the span's error, and goes on.
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
