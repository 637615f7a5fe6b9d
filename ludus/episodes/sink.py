"""Where a session's turns are kept before their answers end.

Knows: nodes and turns.  Knows not: files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ludus.types import Node, Turn


class TurnSink(Protocol):
    """Keeps turns of many sessions. Called from several threads, and while an answer waits: it must be quick."""

    def add_turn(self, session_id: str, nodes: Sequence[Node], turn: Turn) -> None:
        """Durable when it returns. Raises BackendError where it cannot be.

        nodes: those of the session's graph that no earlier turn has told, in the graph's order; the turn's is the last.
        """
