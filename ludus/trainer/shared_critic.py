"""A critic that shares the policy's layers: a second head on its last hidden states, trained by the policy's optimizer.

Knows: rows with values and their targets, hidden states, the ranks.  Knows not: the policy's loss, engines: the head is
not one of the model's weights, so it is never published or exported.
Invariants, as for the policy's trainer: neither rows nor ranks change a gradient; with `loss_weight` 0 the policy's
gradient is that without a critic.

With several ranks rank 0 keeps the head, as it keeps the first rows of every weight; the others get a copy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from ludus.algorithms.pack import PackedRow
from ludus.models.load import LoadedModel
from ludus.trainer.critic import value_slopes
from ludus.trainer.forward import RowForward, RowTensors
from ludus.trainer.metric_means import TokenMeans
from ludus.trainer.ranks import Ranks
from ludus.trainer.settings import CriticSettings
from ludus.trainer.values import scalars, through_scalar_head

HEAD_NAME = "critic.score.weight"
"""Name of the head among the optimizer's parameters."""


class SharedCritic:
    """Computes values from the policy's hidden states, and the gradient of the value loss by them."""

    def __init__(self, model: LoadedModel, settings: CriticSettings, forward: RowForward, ranks: Ranks) -> None:
        """forward: the policy's."""
        self.settings = settings
        width, device = model.embedding.embedding_dim, model.head_weight.device
        self.parameter = Parameter(torch.zeros(1, width, dtype=torch.float32, device=device))
        """The head, of shape (1, D); its initial values are all 0."""
        self._weight, self._gradient = self.parameter.detach(), torch.zeros_like(self.parameter)
        self._forward, self._ranks = forward, ranks

    def __repr__(self) -> str:
        return f"<SharedCritic of weight {self.settings.loss_weight:g}>"

    def prepare(self) -> None:
        """Copy the current head from the rank that keeps it. Every rank must call this."""
        _, columns = self._ranks.concat(self._ranks.local_piece(self.parameter).t().contiguous())
        self._weight = columns.t()
        self._gradient.zero_()

    def values(self, row: PackedRow) -> Tensor:
        """The value before each target, shape (N,)."""
        return scalars(self._forward.hidden(self._forward.tensors(row)), self._weight)

    def through(
        self, hidden_MD: Tensor, *, row: PackedRow, tensors: RowTensors, means: TokenMeans, scale: float
    ) -> Tensor:
        """The value loss's gradient by the hidden states, fp32 of shape (M, D); adds that of the head to `gradient`.

        scale: factor on all gradients.
        """

        def slopes(values: Tensor) -> Tensor:
            by_value = value_slopes(values, row, tensors.weights, clip_range=self.settings.clip_range, means=means)
            return by_value * (self.settings.loss_weight * scale)

        return through_scalar_head(hidden_MD, self._weight, slopes, len(tensors.weights), self._gradient)

    def gradient(self) -> Tensor:
        """This rank's rows of the head's gradient over all ranks since `prepare`. Every rank must call this."""
        _, by_rank = self._ranks.concat(self._gradient.t().contiguous())
        return self._ranks.local_piece(by_rank.sum(1)[None])
