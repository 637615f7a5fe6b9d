"""The reference: a copy of the initial weights, put into the model for a moment when logprobs under them are needed.

Knows: the model's trained parameters, this process's rows of them.  Knows not: losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from ludus.models.load import LoadedModel
from ludus.trainer.ranks import Ranks


class ReferenceWeights:
    """A copy of the trained parameters as they are now."""

    def __init__(self, model: LoadedModel, ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks
        self._kept = copied_weights(model, ranks)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the model's parameters have the reference's values."""
        if self._model.gathering is not None:
            self._exchange()
            try:
                yield
            finally:
                self._exchange()
            return
        current = {name: parameter.data for name, parameter in self._model.trainable.items()}
        try:
            self._point_parameters_to(self._kept)
            yield
        finally:
            self._point_parameters_to(current)

    def _point_parameters_to(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self._model.trainable.items():
            parameter.data = tensors[name]

    @torch.no_grad()
    def _exchange(self) -> None:
        """Swap the values of reference and parameters; sharded parameters are gathered from their own memory, so they
        cannot just be pointed at another tensor."""
        for name, parameter in self._model.trainable.items():
            own, other = self._ranks.local_piece(parameter), self._kept[name]
            before = own.clone()
            own.copy_(other)
            other.copy_(before)


def copied_weights(model: LoadedModel, ranks: Ranks) -> dict[str, Tensor]:
    """This process's rows of the trained parameters, by name."""
    return {name: ranks.local_piece(each).clone() for name, each in model.trainable.items()}
