"""The reward model: gives a token sequence one score, trained on pairs of which one is preferred.

Knows: a model with a scalar head, token sequences, its optimizer.  Knows not: conversations, what is scored.
Invariant: neither rows nor their order change a gradient: the loss is computed over all pairs of a batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ludus.algorithms.pack import PackedRow, TrainSequence, pack
from ludus.algorithms.reward_loss import TokenPair, reward_loss
from ludus.models.load import LoadedModel
from ludus.runs.metrics import Metrics
from ludus.trainer.optimizer import MasterOptimizer
from ludus.trainer.recompute import recompute_layers
from ludus.trainer.rounding import Rounding
from ludus.trainer.settings import TrainerSettings
from ludus.trainer.values import ValueForward

Sequences = Sequence[Sequence[int]]


class RewardScores:
    """Scores token sequences with a model that has a scalar head."""

    def __init__(self, model: LoadedModel, *, row_tokens: int, pad_id: int | None = None) -> None:
        """model: `with_scalar_head`.  row_tokens: of one forward pass, in which shared beginnings are computed once.

        pad_id: the padding token: as in transformers, a sequence's score is that of its last token that is not this
        one, even if the text itself ends with it. None: there is no padding.
        """
        self.model = model
        self.forward = ValueForward(model)
        self._row_tokens = row_tokens
        self._pad_id = pad_id

    def rows(self, sequences: Sequences) -> tuple[PackedRow, ...]:
        """Rows with one target for each sequence, predicted from its last token that is not padding; the target's group
        is the index of the sequence."""
        asked = []
        for number, token_ids in enumerate(sequences):
            end = max((at for at, token in enumerate(token_ids, 1) if token != self._pad_id), default=len(token_ids))
            # the target stands for the score; its token id is never used
            sequence = TrainSequence.plain((*token_ids[:end], 0), (end,))
            asked.append(replace(sequence, groups=(number,)))
        return pack(asked, row_tokens=self._row_tokens)

    def __call__(self, rows: Sequence[PackedRow]) -> Tensor:
        """The score of each sequence, fp32 of shape (S,), without gradients."""
        numbers = torch.tensor([number for row in rows for number in row.groups or ()])
        values = torch.cat([self.forward(self.forward.tensors(row)).cpu() for row in rows])
        return torch.empty_like(values).index_copy(0, numbers, values)


class RewardTrainer:
    """Trains a model's weights on pairs of sequences."""

    def __init__(
        self,
        model: LoadedModel,
        settings: TrainerSettings,
        *,
        center_coefficient: float | None = None,
        pad_id: int | None = None,
        seed: int = 0,
    ) -> None:
        """model: `with_scalar_head`.  center_coefficient: of `reward_loss`.  pad_id: as for `RewardScores`.

        seed: of the rounding of weights.
        """
        self.model = model
        rounding = Rounding(settings.publish_rounding, seed, model.head_weight.device)
        self.optimizer = MasterOptimizer(
            model.trainable, settings.optimizer, rounding, in_host=settings.offload == "optimizer"
        )
        self.scores = RewardScores(model, row_tokens=settings.row_tokens, pad_id=pad_id)
        self._head_name = next(name for name, each in model.trainable.items() if each is model.head_weight)
        self._center_coefficient = center_coefficient
        model.embedding.sparse = model.embedding.weight.requires_grad
        if settings.activation_checkpointing:
            recompute_layers(model)

    def __repr__(self) -> str:
        return f"<RewardTrainer of {self.model!r} after {self.optimizer.num_batches} batches>"

    def train_batch(self, pairs: Sequence[TokenPair]) -> Metrics:
        """Take one optimizer step on the pairs' mean loss, and return the metrics."""
        metrics = self.add(pairs)
        result = self.optimizer.step()
        self.optimizer.copy_to_parameters()
        self.optimizer.end_batch()
        return {**metrics, **result.metrics("train")}

    def add(self, pairs: Sequence[TokenPair]) -> Metrics:
        """Add the gradient of the pairs' mean loss to the optimizer, and return the metrics."""
        rows = self.scores.rows([each for pair in pairs for each in (pair.chosen_ids, pair.rejected_ids)])
        scores_S = self.scores(rows).requires_grad_()
        margins_G = torch.tensor([pair.margin for pair in pairs])
        with torch.enable_grad():
            loss, seen = reward_loss(
                scores_S[::2], scores_S[1::2], margins_G, center_coefficient=self._center_coefficient
            )
            (slopes_S,) = torch.autograd.grad(loss, scores_S)
        for row in rows:
            self._differentiate(row, slopes_S * self.optimizer.loss_scale.factor)
        shown = {**seen, "loss": loss.detach(), "reward_mean": scores_S.detach().mean()}
        return {f"train/{name}": float(each) for name, each in shown.items()}

    def _differentiate(self, row: PackedRow, slopes_S: Tensor) -> None:
        assert row.groups is not None, "each target has the number of its sequence"
        slopes_N = slopes_S[list(row.groups)].to(self.model.head_weight.device)
        forward = self.scores.forward
        forward.differentiate(forward.tensors(row), lambda _: slopes_N, sink_1D=self.optimizer.sink(self._head_name))
