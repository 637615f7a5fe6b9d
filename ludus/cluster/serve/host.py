"""What a server asks of whoever holds the models.

Knows: models by name.  Knows not: jobs, HTTP, how a step is computed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ludus.cluster.serve.wire import RegisterModel
from ludus.episodes.episodes import Episodes


class Loaded(Protocol):
    """A model that is loaded."""

    @property
    def episodes(self) -> Episodes: ...


class Host(Protocol):
    """Holds models. Used from one event loop."""

    async def hosted(self, model: RegisterModel) -> Loaded:
        """The model, loaded now if it was not. Raises UserError if it cannot be."""

    async def get_step(self, model: RegisterModel) -> int:
        """Steps that the model has been trained for, restarts included."""

    async def delete_checkpoints(self, model: RegisterModel, keep: Collection[int]) -> None:
        """Delete all checkpoints but those of these steps and the newest."""
