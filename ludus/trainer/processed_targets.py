"""Recomputes the distribution of targets that were not drawn from the model's plain one: kept sets, penalties, biases.

Knows: packed rows, logits.  Knows not: how tokens are drawn, where logits come from, which loss follows.
Invariant: a target's log-probability is that of the distribution it was drawn from, under the current weights; under
the weights that sampled, it equals the recorded one.

A run is a range of neighbouring targets with the same kind of distribution.
C: rows of logits, V: vocabulary, T: targets of a run, K: most kept ids of a target of the run, P: tokens of a path,
U: tokens whose logits are changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.algorithms.pack import LogitProcessing, PackedRow
from ludus.errors import InternalError, UserError
from ludus.kernels.head import Drawn, Slopes
from ludus.models.bitmask import bitmask_words
from ludus.text.constraint import Constraints, is_allowed
from ludus.trainer.softmax import (
    NEVER,
    LogitChange,
    TorchSoftmax,
    VocabularySoftmax,
    gradient_of,
    softcapped,
    summaries,
)

SoftmaxRuns = list[tuple[slice, VocabularySoftmax | None]]
"""Rows of a chunk, and the softmax for their logits. None: the model's plain distribution."""


@dataclass(frozen=True, slots=True)
class ProcessedTargets:
    """The targets of one row, some of which have a kept set or changed logits."""

    row: PackedRow
    device: torch.device
    constraints: Constraints | None
    """Compiles grammars as the sampler does. None: no target needs one."""

    @classmethod
    def of(
        cls, row: PackedRow, device: torch.device, constraints: Constraints | None = None
    ) -> ProcessedTargets | None:
        """None: all targets were drawn from the model's plain distribution."""
        return cls(row, device, constraints) if row.kept_ids or row.logit_processings else None

    def runs(self, chunk: slice) -> SoftmaxRuns:
        """The runs of a chunk, as slices of its rows; padding counts as plain."""
        runs: SoftmaxRuns = []
        start, stop = chunk.start, min(chunk.stop, len(self.row.target_ids))
        while start < stop:
            end, softmax = self._run(start, stop)
            runs.append((slice(start - chunk.start, end - chunk.start), softmax))
            start = end
        if start < chunk.stop:
            runs.append((slice(start - chunk.start, chunk.stop - chunk.start), None))
        return runs

    def _run(self, start: int, stop: int) -> tuple[int, VocabularySoftmax | None]:
        """The end of the run that begins at target `start`, and its softmax."""
        is_kept, logit_processing = bool(self._kept(start)), self._logit_processing(start)
        path: list[int] = []
        lengths: list[int] = []
        end = start
        while end < stop and (bool(self._kept(end)), self._logit_processing(end)) == (is_kept, logit_processing):
            if logit_processing is not None and not self._extend(path, self.row.source_idx[end]):
                break
            lengths.append(len(path))
            end += 1
        changed = (
            self._changed(logit_processing, path, lengths)
            if logit_processing is not None and logit_processing.changes_logits
            else None
        )
        if is_kept:
            return end, KeptSoftmax.of([self._kept(at) for at in range(start, end)], changed, self.device)
        if logit_processing is None:
            return end, None
        if logit_processing.grammar is None:
            return end, TorchSoftmax(changed)
        tokens = [self.row.token_ids[at] for at in path]
        allowed_TW = self._allowed(
            logit_processing, logit_processing.grammar, tokens, dict(zip(range(start, end), lengths, strict=True))
        )
        return end, TorchSoftmax(changed, allowed_TW)

    def _kept(self, target: int) -> tuple[int, ...]:
        return self.row.kept_ids[target] if self.row.kept_ids else ()

    def _logit_processing(self, target: int) -> LogitProcessing | None:
        return self.row.logit_processings[target] if self.row.logit_processings else None

    def _extend(self, path: list[int], source: int) -> bool:
        """Extend `path` (row indices from a root) to `source`. False: it does not lead there, and is unchanged."""
        end = path[-1] if path else -1
        more: list[int] = []
        while source > end:
            more.append(source)
            source = self.row.parents[source]
        if source == end:
            path.extend(reversed(more))
        return source == end

    def _allowed(
        self, logit_processing: LogitProcessing, grammar: str, tokens: list[int], lengths: Mapping[int, int]
    ) -> Tensor:
        """The tokens that the grammar allows at each target of a path, as bits of shape (T, W).

        lengths: by target, how many tokens of the path come before it.
        """
        if self.constraints is None:
            raise UserError("this trainer has no tokenizer to read the grammar of a target with; give it one")
        constraint = self.constraints.start(grammar)
        masks: list[bytes] = []
        at = logit_processing.answer_from
        for target, length in lengths.items():
            for token in tokens[at:length]:
                constraint.advance(token)
            at = length
            masks.append(constraint.allowed())
            drawn = self.row.target_ids[target]
            if constraint.failure is not None or not is_allowed(masks[-1], drawn):
                why = constraint.failure or f"token {drawn} is none of those it allows there"
                raise InternalError(f"the trainer cannot walk through a grammar as the sampler did: {why}")
        return bitmask_words(b"".join(masks), len(masks), self.device)

    def _changed(
        self, logit_processing: LogitProcessing, path: list[int], lengths: list[int]
    ) -> tuple[Tensor, LogitChange]:
        """The ids whose logits are changed somewhere in a run, and how; target t comes after `lengths[t]` tokens.

        Source, as for the engine: CTRL (arXiv 1909.05858) eq. 2 for repetition over prompt and answer; OpenAI's API
        reference for frequency and presence over the answer, and for biases.
        """
        ids_P = torch.tensor([self.row.token_ids[at] for at in path], device=self.device)
        lengths_T = torch.tensor(lengths, device=self.device)
        bias_ids = torch.tensor(
            [token for token, _ in logit_processing.logit_bias], dtype=torch.int64, device=self.device
        )
        ids_U, places = torch.cat([ids_P, bias_ids]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        places_P = places[: len(path)]
        positions_P = torch.arange(len(path), device=self.device)
        first_U = torch.full_like(ids_U, len(path)).scatter_reduce_(0, places_P, positions_P, "amin")
        repetition_TU = torch.where(first_U < lengths_T[:, None], logit_processing.repetition_penalty, 1.0)
        # a token counts from the first target that comes after it
        first_target_P = torch.searchsorted(lengths_T, positions_P, right=True)
        counted_P = (positions_P >= logit_processing.answer_from) & (first_target_P < len(lengths))
        at = (first_target_P[counted_P], places_P[counted_P])
        new_TU = torch.zeros(repetition_TU.shape, dtype=torch.int32, device=self.device)
        new_TU.index_put_(at, new_TU.new_ones(()), accumulate=True)
        counts_TU = new_TU.cumsum(0).float()
        shift_TU = counts_TU * -logit_processing.frequency_penalty - (counts_TU > 0) * logit_processing.presence_penalty
        biases = [bias for _, bias in logit_processing.logit_bias]
        shift_TU[:, places[len(path) :]] += torch.tensor(biases, dtype=torch.float32, device=self.device)
        return ids_U, LogitChange(repetition_TU, shift_TU)


@dataclass(frozen=True, slots=True)
class KeptSoftmax:
    """A VocabularySoftmax of rows whose targets were drawn from a few kept tokens: it computes only with those."""

    ids_TK: Tensor
    """The kept ids of each row, rising, padded with 0."""
    is_missing_TK: Tensor
    """Where `ids_TK` is padding."""
    change: LogitChange | None
    """Of the kept tokens' logits. None: they were not changed."""

    @classmethod
    def of(
        cls, kept_ids: Sequence[tuple[int, ...]], changed: tuple[Tensor, LogitChange] | None, device: torch.device
    ) -> KeptSoftmax:
        """changed: ids whose logits are changed, rising, and how. None: none are."""
        num_kept = max(map(len, kept_ids))
        padded = [ids + (0,) * (num_kept - len(ids)) for ids in kept_ids]
        ids_TK = torch.tensor(padded, device=device)
        counts_T = torch.tensor([len(ids) for ids in kept_ids], device=device)
        is_missing_TK = torch.arange(num_kept, device=device) >= counts_T[:, None]
        return cls(ids_TK, is_missing_TK, None if changed is None else _at(ids_TK, *changed))

    def summarise(self, logits_CV: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor, Tensor]:
        scores_TK, _ = self._scores(logits_CV, drawn)
        return summaries(scores_TK, self._indices(drawn.ids_C))

    def differentiate(self, logits_CV: Tensor, drawn: Drawn, slopes: Slopes) -> None:
        scores_TK, factor_TK = self._scores(logits_CV, drawn)
        grad_TK = gradient_of(scores_TK, self._indices(drawn.ids_C), drawn.temperatures_C, slopes).mul_(factor_TK)
        # padding has the id 0 and the gradient 0, so adding it changes nothing
        logits_CV.zero_().scatter_add_(1, self.ids_TK, grad_TK.to(logits_CV.dtype))

    def _scores(self, logits_CV: Tensor, drawn: Drawn) -> tuple[Tensor, Tensor]:
        """Capped and changed logits of the kept tokens over temperature, and their derivative by the logits."""
        scores_TK, slope_TK = softcapped(logits_CV.gather(1, self.ids_TK), drawn.softcap)
        slope_TK = torch.ones_like(scores_TK) if slope_TK is None else slope_TK
        if self.change is not None:
            scores_TK, factor_TK = self.change.apply(scores_TK)
            slope_TK = slope_TK * factor_TK
        return scores_TK.div_(drawn.temperatures_C[:, None]).masked_fill_(self.is_missing_TK, NEVER), slope_TK

    def _indices(self, targets_C: Tensor) -> Tensor:
        """The index of each target among the kept ids of its row."""
        return ((self.ids_TK == targets_C[:, None]) & ~self.is_missing_TK).int().argmax(-1)


def _at(ids_TK: Tensor, ids_U: Tensor, change: LogitChange) -> LogitChange:
    """`change`, given for the ids `ids_U`, as a change of the tokens `ids_TK`."""
    places_TK = torch.searchsorted(ids_U, ids_TK).clamp_(max=len(ids_U) - 1)
    is_changed_TK = ids_U[places_TK] == ids_TK
    return LogitChange(
        torch.where(is_changed_TK, change.repetition.gather(1, places_TK), 1.0),
        torch.where(is_changed_TK, change.shift.gather(1, places_TK), 0.0),
    )
