"""The recorder, which opens recorded sessions on one engine and one chat model's text.

Knows: engines, text, names of models.  Knows not: what becomes of a session.
"""

from __future__ import annotations

from ludus.engines.base import Engine
from ludus.episodes.names import UNNAMED, ModelNames
from ludus.episodes.session import OtherModels, Session, TurnSink
from ludus.episodes.spec import SessionSpec
from ludus.text.chat import ChatText


class Recorder:
    """Opens sessions on one engine and one chat model's text. Safe to use from several threads and event loops."""

    def __init__(
        self, engine: Engine, text: ChatText, *, names: ModelNames = UNNAMED, others: OtherModels | None = None
    ) -> None:
        """names: of the model, in requests.  others: further weights that requests may name. None: there are none."""
        self.names = names
        self._others = others
        self._engine = engine
        self._text = text

    def __repr__(self) -> str:
        return f"Recorder(model={self.names.name!r}, engine={self._engine!r})"

    def model_list(self) -> tuple[str, ...]:
        """Names of all models that requests may name."""
        return self.names.listed(() if self._others is None else self._others.names())

    def open(self, spec: SessionSpec, *, sink: TurnSink | None = None) -> Session:
        """A new session without turns; the spec has its id.

        sink: keeps each turn before its answer ends. None: turns are kept in memory only.
        """
        return Session(self._engine, self._text, spec, sink, names=self.names, others=self._others)
