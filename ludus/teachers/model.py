"""A scorer with a model of its own in this process, which only runs forward passes.

Knows: packed rows, a model's forward pass, the compute lease.  Knows not: turns, hints, training.
Invariant: a prefix that paths share goes through the model once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from ludus.algorithms.pack import PackedRow, TrainSequence, pack
from ludus.engines.lease import ComputeLease
from ludus.errors import UserError
from ludus.models.device import use_device
from ludus.models.load import LoadedModel
from ludus.teachers.base import ScoredPath
from ludus.trainer.forward import RowForward

logger = logging.getLogger(__name__)


class ModelScorer:
    """Scores with a model that is not trained. lease: held for each row's forward pass."""

    def __init__(self, model: LoadedModel, *, lease: ComputeLease, row_tokens: int) -> None:
        for parameter in model.module.parameters():
            parameter.requires_grad_(False)
        self._forward: RowForward | None = RowForward(model)
        self._vocab_size, self._context_length = model.head_weight.shape[0], model.config.context_length
        self._device = model.head_weight.device
        self._lease = lease
        self._row_tokens = row_tokens
        self._num_bytes = sum(each.numel() * each.element_size() for each in model.module.parameters())
        logger.info("teacher.loaded folder=%s mb=%.0f", model.folder, self._num_bytes / 2**20)

    def __repr__(self) -> str:
        return f"<ModelScorer of {self._num_bytes / 2**20:.0f} MB>"

    async def score(self, paths: Sequence[ScoredPath]) -> list[tuple[float, ...]]:
        for path in paths:
            self._check(path)
        numbered: list[TrainSequence] = []
        first = 0
        for path in paths:
            numbers = tuple(range(first, first + len(path.wanted)))
            numbered.append(replace(TrainSequence.plain(path.token_ids, path.wanted), turns=numbers))
            first += len(path.wanted)
        logprobs = [0.0] * first
        for row in pack(numbered, row_tokens=self._row_tokens):
            assert row.turns is not None, "every sequence numbers its targets"
            for number, logprob in zip(row.turns, await asyncio.to_thread(self._score_row, row), strict=True):
                logprobs[number] = logprob
        return [tuple(logprobs[number] for number in each.turns or ()) for each in numbered]

    async def close(self) -> None:
        if self._forward is not None:
            self._forward = None
            logger.info("teacher.freed mb=%.0f", self._num_bytes / 2**20)

    def _score_row(self, row: PackedRow) -> list[float]:
        assert self._forward is not None, "a scorer that is closed is asked no more"
        use_device(self._device)
        with self._lease.hold("teacher"):
            logprobs_N, _ = self._forward(self._forward.tensors(row))
            found: list[float] = logprobs_N.tolist()
            return found

    def _check(self, path: ScoredPath) -> None:
        if len(path.token_ids) > self._context_length:
            raise UserError(
                f"the teacher has a context of {self._context_length} tokens, and a conversation to be scored has "
                f"{len(path.token_ids)}; bound the conversations with model.context_length, or take another teacher"
            )
        if max(path.token_ids, default=0) >= self._vocab_size:
            raise UserError(
                f"the teacher has {self._vocab_size} tokens, and a conversation has the id {max(path.token_ids)}; "
                "take a teacher with the same vocabulary"
            )
