"""What makes recorded sessions, on one engine and one chat model's text.

Knows: engines, text.  Knows not: what becomes of a session.
"""

from __future__ import annotations

from collections.abc import Iterable

from ludus.engines.base import Engine
from ludus.episodes.limits import NO_LIMITS, Limits
from ludus.episodes.session import Session, TurnSink
from ludus.text.chat import ChatText
from ludus.types import Sampling

_OWN_DISTRIBUTION = Sampling()


class Recorder:
    """Opens sessions on one engine and one chat model's text. Safe to use from several threads and event loops."""

    def __init__(self, engine: Engine, text: ChatText, *, model_name: str = "default") -> None:
        self.model_name = model_name
        self._engine = engine
        self._text = text

    def __repr__(self) -> str:
        return f"Recorder(model={self.model_name!r}, engine={self._engine!r})"

    def open(
        self,
        *,
        session_id: str,
        group_id: str | None = None,
        limits: Limits = NO_LIMITS,
        sampling: Sampling = _OWN_DISTRIBUTION,
        pinned: Iterable[str] = (),
        sink: TurnSink | None = None,
    ) -> Session:
        """A new session without turns.

        sampling: what a request gets where it asks for nothing; its seed is the session's seed (None: one is derived
        from `session_id`). pinned: fields of `sampling` that a request cannot change. sink: keeps each turn before
        its answer ends; None: turns are in memory alone.
        """
        return Session(
            self._engine,
            self._text,
            session_id=session_id,
            group_id=group_id,
            limits=limits,
            sampling=sampling,
            pinned=frozenset(pinned),
            sink=sink,
        )
