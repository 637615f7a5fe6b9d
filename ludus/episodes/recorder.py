"""What makes recorded sessions, on one engine and one chat model's text.

Knows: engines, text.  Knows not: what becomes of a session.
"""

from __future__ import annotations

from ludus.engines.base import Engine
from ludus.episodes.handle import OtherModels
from ludus.episodes.session import Session, TurnSink
from ludus.episodes.spec import SessionSpec
from ludus.text.chat import ChatText


class Recorder:
    """Opens sessions on one engine and one chat model's text. Safe to use from several threads and event loops."""

    def __init__(
        self, engine: Engine, text: ChatText, *, model_name: str = "default", others: OtherModels | None = None
    ) -> None:
        """model_name: what requests call it.  others: models besides that they may name. None: there are none."""
        self.model_name = model_name
        self.others = others
        self._engine = engine
        self._text = text

    def __repr__(self) -> str:
        return f"Recorder(model={self.model_name!r}, engine={self._engine!r})"

    def open(self, spec: SessionSpec, *, sink: TurnSink | None = None) -> Session:
        """A new session without turns; the spec has its id.

        sink: keeps each turn before its answer ends. None: turns are in memory alone.
        """
        return Session(self._engine, self._text, spec, sink, model_name=self.model_name)
