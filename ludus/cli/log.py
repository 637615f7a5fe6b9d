"""Configures which log messages are shown in the terminal.

Knows: loggers, levels.  Knows not: commands.
"""

from __future__ import annotations

import logging
from collections import Counter

from rich.console import Console
from rich.logging import RichHandler

MOST_OF_A_KIND = 3


def show_log(verbose: int) -> None:
    """Log to stderr. verbose: 0: warnings, a few of each kind; 1: all warnings and lifecycle events; 2: every
    request."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    handler = RichHandler(console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S")
    handler.setFormatter(logging.Formatter("%(message)s"))
    if not verbose:
        handler.addFilter(_FewOfAKind())
    ours = logging.getLogger("ludus")
    ours.handlers = [handler]
    ours.propagate = False
    ours.setLevel(level)


class _FewOfAKind(logging.Filter):
    """Passes only the first MOST_OF_A_KIND records of each message, as a learning model repeats its mistakes."""

    def __init__(self) -> None:
        super().__init__()
        self._num_seen: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        message = str(record.msg)
        self._num_seen[message] += 1
        if self._num_seen[message] == MOST_OF_A_KIND:
            record.msg = f"{message} (no more of these are shown; -v shows all)"
        return self._num_seen[message] <= MOST_OF_A_KIND


def expect_warnings() -> None:
    """Hide warnings, unless -v was given, for checks that cause faults on purpose."""
    ours = logging.getLogger("ludus")
    if ours.level == logging.WARNING:
        ours.setLevel(logging.CRITICAL)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
