"""Weights of a model that is trained, other than its newest: its base, and the steps that were saved.

Knows: names of weights, engines on them, the sessions in which they answer.  Knows not: HTTP, training.
Invariants: weights that were asked for by name answer, or the request is refused by name; what they sample is in no
record of the model's, so it is never trained.

    NAME@12       the weights after step 12, as they were saved
    BASE, NAME@0  the weights before the first step; BASE is the name by which the model was loaded
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ludus.api.local import LocalModel
from ludus.api.opened_weights import Opened, OpenedWeights
from ludus.config import Config
from ludus.engines.kind import LocalKind, kind_of
from ludus.episodes.handle import Handle
from ludus.errors import AgentError
from ludus.gateway.app import own_names, unknown_model
from ludus.loop.checkpoint import checkpoints
from ludus.rollout.mixture import derive_seed
from ludus.text.chat import ChatText

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

logger = logging.getLogger(__name__)


class SavedWeights:
    """The other models of one model's sessions. `find` is called on one event loop."""

    def __init__(self, config: Config, local: LocalModel, *, step: Callable[[], int], bases: Sequence[str]) -> None:
        """step: the model's own, now.  bases: what the model was called when it was loaded."""
        self._config = config
        self._local = local
        self._step = step
        self._bases = tuple(dict.fromkeys((*bases, config.model.path)))
        self._opened = OpenedWeights[int](config.engine, lease=local.lease, seed=config.seed)
        self._sessions: WeakKeyDictionary[Opened, WeakKeyDictionary[Handle, Handle]] = WeakKeyDictionary()
        """By the session that the requests came for."""

    def __repr__(self) -> str:
        return f"SavedWeights({self._config.name!r}, opened={self._opened})"

    def names(self) -> Sequence[str]:
        """Of those that could answer now."""
        return [*self._bases, *(f"{self._config.name}@{step}" for step in self._folders())]

    async def find(self, handle: Handle, name: str) -> Handle:
        step = self._step_of(handle, name)
        if step not in self._opened:
            self._check_local(name)
            logger.info("weights.opening model=%s step=%d", self._config.name, step)
        opened = await self._opened.get(
            step, lambda: self._load(step), name=f"{self._config.name}@{step}", version=step
        )
        sessions = self._sessions.setdefault(opened, WeakKeyDictionary())
        if handle not in sessions:
            seed = derive_seed(self._config.seed, "weights", handle.id, step)
            sampling = replace(handle.spec.sampling, seed=seed)
            session = opened.recorder.open(replace(handle.spec, id=f"{handle.id}@{step}", sampling=sampling))
            sessions[handle] = Handle(session)
        return sessions[handle]

    async def close(self) -> None:
        await self._opened.close()

    # ---- inside

    def _folders(self) -> dict[int, Path]:
        """By step, the folder of its weights."""
        found = checkpoints(self._config.folder / "checkpoints")
        return {each.progress.step: each.folder / "model" for each in found}

    def _step_of(self, handle: Handle, name: str) -> int:
        """Raises AgentError for a name that is none of these weights."""
        if name in self._bases:
            return 0
        own, _, step = name.rpartition("@")
        if own not in own_names(handle.session) or not step.isdecimal():
            why = "this key reaches other weights of the same model; another model is asked by its own client"
            raise unknown_model(name, [*own_names(handle.session), *self.names()], why=why)
        if int(step) and int(step) not in self._opened and int(step) not in self._folders():
            why = f"step {step} was not saved" if int(step) <= self._step() else f"step {step} was not trained yet"
            raise unknown_model(name, [*own_names(handle.session), *self.names()], why=why)
        return int(step)

    def _check_local(self, name: str) -> None:
        if not isinstance(kind_of(self._config.engine), LocalKind):
            raise AgentError(
                f"The model {name!r} cannot answer: engine.kind is {self._config.engine.kind!r}, and engines in other "
                "processes have the newest weights alone; with engine.kind=local the base and saved steps answer too.",
                status=404,
                code="model_not_found",
                param="model",
            )

    def _load(self, step: int) -> tuple[LoadedModel, ChatText]:
        from ludus.models.load import load_model

        path = str(self._folders()[step]) if step else self._config.model.path
        settings = self._config.model.model_copy(update={"path": path, "lora": None})
        return load_model(settings, seed=self._config.seed), self._local.text
