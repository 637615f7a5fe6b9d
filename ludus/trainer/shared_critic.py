"""A critic on the policy's own trunk: one more head on its last hidden states, moved by the policy's optimizer.

Knows: rows with values and their targets, hidden states, the ranks.  Knows not: the policy's loss, engines: the head is
none of the model's weights, so nobody publishes or exports it.
Invariants: as of the policy's trainer: neither rows nor ranks change a gradient; with a weight of 0 that of the policy
is the one without a critic.

Over several ranks the first keeps the head, as it keeps the first rows of every weight; the others are told.
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
"""Of the head among the optimizer's parameters."""


class SharedCritic:
    """Says values of the policy's hidden states, and how they are to be moved."""

    def __init__(self, model: LoadedModel, settings: CriticSettings, forward: RowForward, ranks: Ranks) -> None:
        """forward: of the policy."""
        self.settings = settings
        width, device = model.embedding.embedding_dim, model.head_weight.device
        self.parameter = Parameter(torch.zeros(1, width, dtype=torch.float32, device=device))
        """Of shape (1, D): the head begins with 0 for everything."""
        self._weight, self._gradient = self.parameter.detach(), torch.zeros_like(self.parameter)
        self._forward, self._ranks = forward, ranks

    def __repr__(self) -> str:
        return f"<SharedCritic of weight {self.settings.loss_weight:g}>"

    def prepare(self) -> None:
        """Take the head as it is now, from the rank that keeps it; every rank has to."""
        _, columns = self._ranks.concat(self._ranks.local_rows(self.parameter).t().contiguous())
        self._weight = columns.t()
        self._gradient.zero_()

    def values(self, row: PackedRow) -> Tensor:
        """Of each target, before it is drawn, shape (N,)."""
        return scalars(self._forward.hidden(self._forward.tensors(row)), self._weight)

    def through(
        self, hidden_MD: Tensor, *, row: PackedRow, tensors: RowTensors, means: TokenMeans, scale: float
    ) -> Tensor:
        """The value loss's gradient by the hidden states, fp32 of shape (M, D); the head's is kept until `gradient`.

        scale: what all gradients are multiplied by.
        """

        def slopes(values: Tensor) -> Tensor:
            by_value = value_slopes(values, row, tensors.weights, clip_range=self.settings.clip_range, means=means)
            return by_value * (self.settings.loss_weight * scale)

        return through_scalar_head(hidden_MD, self._weight, slopes, len(tensors.weights), self._gradient)

    def gradient(self) -> Tensor:
        """What the rows of all ranks have given the head since `prepare`: this rank's rows; every rank has to ask."""
        _, by_rank = self._ranks.concat(self._gradient.t().contiguous())
        return self._ranks.local_rows(by_rank.sum(1)[None])
