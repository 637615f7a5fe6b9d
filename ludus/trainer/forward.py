"""One packed row through the model: log-probabilities of its targets, with or without gradients.

Knows: rows, the model's backbone and head.  Knows not: losses, optimizers, leases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.algo.pack import PackedRow
from ludus.model.load import LoadedModel
from ludus.model.tree import TreePlan
from ludus.trainer.head import VocabularyHead


@dataclass(frozen=True, slots=True)
class RowTensors:
    """A packed row on the model's device. Shapes: (S,) for tokens of the row, (N,) for its targets."""

    plan: TreePlan
    token_ids: Tensor
    positions: Tensor
    source_idx: Tensor
    target_ids: Tensor
    temperatures: Tensor
    advantages: Tensor
    weights: Tensor
    sampled_logprobs: Tensor

    @classmethod
    def of(cls, row: PackedRow, device: torch.device) -> RowTensors:
        return cls(
            plan=TreePlan(row.parents, row.positions),
            token_ids=torch.tensor(row.token_ids, device=device),
            positions=torch.tensor(row.positions, device=device),
            source_idx=torch.tensor(row.source_idx, device=device),
            target_ids=torch.tensor(row.target_ids, device=device),
            temperatures=torch.tensor(row.temperatures, dtype=torch.float32, device=device),
            advantages=torch.tensor(row.advantages, dtype=torch.float32, device=device),
            weights=torch.tensor(row.weights, dtype=torch.float32, device=device),
            sampled_logprobs=torch.tensor(row.logprobs, dtype=torch.float32, device=device),
        )


class RowForward:
    """The forward pass of rows through one model."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.head = VocabularyHead(model.head_weight, softcap=model.logit_softcap)

    def __call__(self, row: RowTensors, *, sink_VD: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of every target, fp32 of shape (N,); the first carries a gradient.

        sink_VD: fp32 tensor that the head's gradient is added to. None: the head is not trained.
        """
        hidden_SD = self.model.backbone(row.token_ids[None], row.positions[None], row.plan)[0]
        hidden_ND = hidden_SD.index_select(0, row.source_idx)
        return self.head(hidden_ND, row.target_ids, row.temperatures, sink_VD=sink_VD)
