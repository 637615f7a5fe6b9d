"""Answers with weights of a model in training other than its newest: its base, and the steps that were saved.

Knows: names of weights, engines on them, the sessions in which they answer.  Knows not: HTTP, training.
Invariants: a request is answered by the weights it names, or refused with that name; what they sample is not in the
model's record, so it is never trained on. The names: `episodes/names.py`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ludus.api.local import LocalModel
from ludus.api.opened_weights import Opened, OpenedWeights
from ludus.api.step_weights import load_step
from ludus.config import Config
from ludus.engines.kind import LocalKind, kind_of
from ludus.episodes.session import Session
from ludus.errors import UserError
from ludus.loop.checkpoint import Checkpoint, checkpoints
from ludus.rollout.mixture import derive_seed
from ludus.text.chat import ChatText

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

logger = logging.getLogger(__name__)


class SavedWeights:
    """The other models of one model's sessions (`OtherModels`)."""

    def __init__(self, config: Config, local: LocalModel, *, bases: Sequence[str]) -> None:
        """local: the model's own engine, text and lease.  bases: further names of the model it was loaded from."""
        self._config = config
        self._local = local
        self._bases = tuple(dict.fromkeys((*bases, config.model.path)))
        self._opened = OpenedWeights[int](config.engine, lease=local.lease, seed=config.seed)
        self._lock = threading.Lock()
        """Guards `_sessions`; never held for long."""
        self._sessions: WeakKeyDictionary[Opened, WeakKeyDictionary[Session, Session]] = WeakKeyDictionary()
        """By the session that the request came for, the one in which these weights answer it."""

    def __repr__(self) -> str:
        return f"SavedWeights({self._config.name!r}, opened={self._opened})"

    def names(self) -> Sequence[str]:
        """Names of the weights that could answer now."""
        if not self._are_served:
            return ()
        return [*self._bases, *(f"{self._config.name}@{step}" for step in self._found())]

    async def find(self, session: Session, name: str) -> Session | None:
        step = 0 if name in self._bases else session.names.step_of(name)
        if step is None:
            return None
        if step not in self._opened:
            self._check(session, name, step)
            logger.info("weights.opening model=%s step=%d", self._config.name, step)
        called = f"{self._config.name}@{step}"
        try:
            opened = await self._opened.get(step, lambda: self._load(step), name=called, version=step)
        except UserError as error:  # the client is told that these weights are not available
            raise session.names.unknown(name, session.model_list, why=str(error)) from error
        with self._lock:
            sessions = self._sessions.setdefault(opened, WeakKeyDictionary())
            if session not in sessions:
                sampling = replace(
                    session.spec.sampling, seed=derive_seed(self._config.seed, "weights", session.id, step)
                )
                spec = replace(session.spec, id=f"{session.id}@{step}", sampling=sampling, recall=None)
                sessions[session] = opened.recorder.open(spec)
            return sessions[session]

    async def close(self) -> None:
        await self._opened.close()

    # ---- inside

    @property
    def _are_served(self) -> bool:
        return isinstance(kind_of(self._config.engine), LocalKind)

    def _found(self) -> dict[int, Checkpoint]:
        """The checkpoints by step."""
        return {each.progress.step: each for each in checkpoints(self._config.folder / "checkpoints")}

    def _check(self, session: Session, name: str, step: int) -> None:
        """Raises AgentError for weights that are not there."""
        why = None
        if not self._are_served:
            why = (
                f"engine.kind is {self._config.engine.kind!r}, and engines in other processes have the newest weights "
                "alone; with engine.kind=local the base and saved steps answer too"
            )
        elif step and step not in self._found():
            now = self._local.engine.stats().version
            why = f"step {step} was not saved" if step <= now else f"step {step} was not trained yet"
        if why is not None:
            raise session.names.unknown(name, session.model_list, why=why)

    def _load(self, step: int) -> tuple[LoadedModel, ChatText]:
        found = self._found().get(step)
        if step and found is None:
            raise UserError(f"step {step} is not there any more")
        return load_step(self._config, found if step else None), self._local.text
