"""Carries out a planned step: one ragged forward pass through transformers' modules, then the draws.

Knows: the model, the cache, the kernel, the sampler.  Knows not: which sequences come next, threads, stop rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as TokenSequence

import torch
from torch import Tensor

from ludus.engines.local.draws.base import SamplingKernel, SamplingRequest, capped, uniform
from ludus.engines.local.graphs import Capture, StepGraphs
from ludus.engines.local.kernels.base import PAGE_TOKENS, AttentionKernel, RaggedBatch, SequenceChunk
from ludus.engines.local.kernels.triton import TritonKernel
from ludus.engines.local.paged import CausalPlan, PagedCache, PagedPlan
from ludus.engines.local.sampler import ROW_BLOCK, ROWS, Sampler
from ludus.engines.local.scheduler import ScheduledChunk, StepPlan
from ludus.engines.sequence import SampledToken, Sequence
from ludus.errors import BackendError
from ludus.models.load import LoadedModel


class Runner:
    """The model with its pages.

    max_running: most sequences of a step.
    capture: how steps become graphs, with the Triton kernel. None: they run one operation at a time.
    """

    def __init__(
        self,
        model: LoadedModel,
        kernel: AttentionKernel,
        draws: SamplingKernel,
        *,
        num_pages: int,
        max_running: int,
        capture: Capture | None = None,
    ) -> None:
        head = model.head_weight
        self._model = model
        self._kernel = kernel
        self._cache = PagedCache(model.config, num_pages, dtype=head.dtype, device=head.device)
        self._sampler = Sampler(head, draws)
        self._graphs: StepGraphs | None = None
        if capture is not None and isinstance(kernel, TritonKernel):
            max_pages = min(num_pages, -(-model.config.context_length // PAGE_TOKENS))
            self._graphs = StepGraphs(model, self._cache, max_running=max_running, max_pages=max_pages, capture=capture)

    def __repr__(self) -> str:
        return f"<Runner {self._model!r} {self._kernel!r} {self._cache!r}>"

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[tuple[Sequence, SampledToken]]:
        """The token drawn for every sequence that samples in this step."""
        self._cache.copy(plan.copies)
        hidden_SD = self._forward(plan.scheduled)
        last, requests, sequences, end = [], [], [], 0
        for item in plan.scheduled:
            end += item.num_tokens
            if item.samples:
                last.append(end - 1)
                requests.append(_request(item.sequence))
                sequences.append(item.sequence)
        if not requests:
            return []
        hidden_ND = hidden_SD if len(last) == hidden_SD.shape[0] else hidden_SD[last]
        draws = self._sampler.draw(
            hidden_ND, self._model.head_weight, requests, softcap=self._model.config.logit_softcap
        )
        for sequence, draw in zip(sequences, draws, strict=True):
            if math.isnan(draw.logprob):
                raise BackendError(
                    f"the model's logits for call {sequence.call.id!r} are no numbers (NaN), so its weights are "
                    "damaged or have diverged: go on from an earlier checkpoint, with a smaller learning rate"
                )
        return list(zip(sequences, draws, strict=True))

    @torch.inference_mode()
    def score(self, token_ids: TokenSequence[int]) -> list[float]:
        """Logprob of every token but the first, temperature 1."""
        ids_S = torch.tensor(token_ids, device=self._model.head_weight.device)
        positions_S = torch.arange(len(token_ids), device=ids_S.device)
        hidden_SD = self._model.backbone(ids_S[None], positions_S[None], CausalPlan())[0, :-1]
        logprobs: list[float] = []
        for start in range(0, len(hidden_SD), ROWS):
            part = slice(start, start + ROWS)
            logits_NV = self._sampler.logits(hidden_SD[part], self._model.head_weight)
            logits_NV = capped(logits_NV.float(), self._model.config.logit_softcap)
            targets_N1 = ids_S[1:][part, None]
            logprobs += (logits_NV.gather(1, targets_N1)[:, 0] - logits_NV.logsumexp(-1)).tolist()
        return logprobs

    def free(self) -> None:
        self._graphs = None
        self._cache.free()

    def _forward(self, scheduled: TokenSequence[ScheduledChunk]) -> Tensor:
        """Final hidden states of all tokens of the step, shape (S, D)."""
        ids = [
            token for item in scheduled for token in item.sequence.token_ids[item.start : item.start + item.num_tokens]
        ]
        positions = [at for item in scheduled for at in range(item.start, item.start + item.num_tokens)]
        chunks = RaggedBatch([SequenceChunk(item.start, item.num_tokens, item.sequence.pages) for item in scheduled])
        if self._graphs is not None:
            return self._graphs.forward(ids, positions, chunks)
        device = self._model.head_weight.device
        filling = [] if self._sampler.is_native else [0] * (filled_rows(len(ids)) - len(ids))
        hidden = self._model.backbone(
            torch.tensor([ids + filling], device=device),
            torch.tensor([positions + filling], device=device),
            PagedPlan(self._cache, self._kernel, chunks),
        )
        return hidden[0, : len(ids)]


def filled_rows(num_rows: int) -> int:
    """Rows that torch multiplies for `num_rows` tokens: whole blocks, by at most a sixth more above 32 rows.

    fp32 products give a row the same bits only among whole blocks of rows. And oneDNN keeps a compiled product for
    every size it has met: with blocks that grow there are some sixty sizes up to 2,048 rows instead of thousands.
    """
    block = ROW_BLOCK if num_rows <= 32 else 16 if num_rows <= 256 else 64
    return -(-num_rows // block) * block


def _request(sequence: Sequence) -> SamplingRequest:
    position = len(sequence.token_ids)
    allowed = None if sequence.constraint is None else sequence.constraint.allowed()
    return SamplingRequest(
        sequence.call.sampling, uniform(sequence.seed, position), sequence.token_ids, sequence.num_prompt, allowed
    )
