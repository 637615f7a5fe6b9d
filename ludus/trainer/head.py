"""The vocabulary head: log-probabilities of given tokens without holding all logits at once.

Knows: the head's weight, temperature, softcap, which softmax a row needs.  Knows not: which loss follows.
Invariant: at most LOGIT_BYTES of logits (on a GPU CARD_LOGIT_BYTES) are alive, however many tokens there are.

Each chunk of tokens is finished before the next begins: logits by one matrix product in the model's dtype, as the
engine computes them; log-probabilities; the loss's slopes; the logits' gradient, which overwrites the logits; and the
two products that give the gradients of hidden states and weight. So nothing is computed twice.

N: tokens, C: tokens of a chunk, V: vocabulary, D: width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ludus.kernels.head import Drawn, Slopes
from ludus.trainer.processed_targets import ProcessedTargets
from ludus.trainer.softmax import VocabularySoftmax, choose_softmax

# Some 500 rows of a vocabulary of 50,000 in bf16: enough for fast products, and little compared with a small model.
LOGIT_BYTES = 48 << 20
# On a GPU small products take longer to launch than to compute; with three fp32 copies this is 2 GB at most.
CARD_LOGIT_BYTES = 256 << 20
# The rows of a chunk are a multiple of this, because oneDNN keeps a compiled kernel for every size it has seen.
_ROW_BLOCK = 32
# Rows of the head's gradient computed at a time, so that they are added to the sum while they are in the cache.
_GRAD_ROWS = 4096

AskSlopes = Callable[[slice, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(which of the N tokens, their log-probabilities (C,), their entropies (C,)) → the loss's derivatives by each
log-probability (C,) and by each entropy (C,). None: the loss does not depend on entropies."""


class VocabularyHead:
    """Log-probabilities and entropies of tokens, and the gradients of a loss of them by hidden states and weight."""

    def __init__(self, weight_VD: Tensor, *, softcap: float | None, logit_bytes: int | None = None) -> None:
        """logit_bytes: upper bound of the logits that are alive. None: the default for the weight's device."""
        is_on_card = weight_VD.device.type != "cpu"
        if logit_bytes is None:
            logit_bytes = CARD_LOGIT_BYTES if is_on_card else LOGIT_BYTES
        self.weight_VD = weight_VD
        """May be replaced by another tensor of the same shape between two calls."""
        self.softcap = softcap
        num_rows = logit_bytes // (weight_VD.element_size() * weight_VD.shape[0])
        self.chunk_rows = max(1, num_rows - num_rows % _ROW_BLOCK if num_rows > _ROW_BLOCK else num_rows)
        self._grad_rows = weight_VD.shape[0] if is_on_card else _GRAD_ROWS
        self._softmax = choose_softmax(weight_VD)
        self._buffer: Tensor | None = None

    @torch.no_grad()
    def __call__(
        self, hidden_ND: Tensor, targets_N: Tensor, temperatures_N: Tensor, processed: ProcessedTargets | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of each target and entropy of its distribution, both fp32 of shape (N,); no gradients.

        processed: targets that were not drawn from the model's plain distribution. None: there are none.
        """
        parts = []
        for chunk in self._chunks(len(hidden_ND)):
            logits_CV, drawn = self._logits(hidden_ND[chunk]), Drawn(targets_N, temperatures_N, self.softcap)[chunk]
            for rows, softmax in self._runs(chunk, processed):
                parts.append(softmax.summarise(logits_CV[rows], drawn[rows]))
        if not parts:
            return temperatures_N.clone(), temperatures_N.clone()
        logprobs_N, entropies_N, _ = (torch.cat(each) for each in zip(*parts, strict=True))
        return logprobs_N, entropies_N

    @torch.no_grad()
    def logit_gradients(
        self, hidden_ND: Tensor, targets_N: Tensor, temperatures_N: Tensor, processed: ProcessedTargets | None = None
    ) -> Tensor:
        """Squared length of the gradient of each target's log-probability by the logits over temperature, fp32 of shape
        (N,): 1 - 2 p + the sum of all squared probabilities, at least 0. Arguments as for `__call__`.

        The sum of squares is the softmax normaliser at half the temperature over the square of the one at the full
        temperature.
        """
        parts = [temperatures_N.new_empty(0)]
        for chunk in self._chunks(len(hidden_ND)):
            logits_CV, drawn = self._logits(hidden_ND[chunk]), Drawn(targets_N, temperatures_N, self.softcap)[chunk]
            halved = Drawn(drawn.ids_C, drawn.temperatures_C / 2, self.softcap)
            for rows, softmax in self._runs(chunk, processed):
                logprobs, _, log_norms = softmax.summarise(logits_CV[rows], drawn[rows])
                _, _, of_squares = softmax.summarise(logits_CV[rows], halved[rows])
                # for a token of probability close to 1 rounding can make it negative
                parts.append((1 - 2 * logprobs.exp() + (of_squares - 2 * log_norms).exp()).clamp(min=0))
        return torch.cat(parts)

    @torch.no_grad()
    def differentiate(
        self,
        hidden_ND: Tensor,
        targets_N: Tensor,
        temperatures_N: Tensor,
        slopes: AskSlopes,
        *,
        processed: ProcessedTargets | None = None,
        sink_VD: Tensor | None = None,
    ) -> Tensor:
        """The gradient of a loss by the hidden states, shape (N, D). `slopes` is called for each chunk.

        sink_VD: fp32 tensor that the weight's gradient is added to. None: the weight is frozen.
        """
        grad_hidden_ND = torch.empty_like(hidden_ND)
        for chunk in self._chunks(len(hidden_ND)):
            hidden_CD, drawn = hidden_ND[chunk], Drawn(targets_N, temperatures_N, self.softcap)[chunk]
            logits_CV, runs = self._logits(hidden_CD), self._runs(chunk, processed)
            seen = [softmax.summarise(logits_CV[rows], drawn[rows]) for rows, softmax in runs]
            logprobs_C, entropies_C, log_norms_C = (torch.cat(parts) for parts in zip(*seen, strict=True))
            by_logprob_C, by_entropy_C = slopes(chunk, logprobs_C, entropies_C)
            entropy_2C = None if by_entropy_C is None else torch.stack([by_entropy_C, entropies_C])
            of_chunk = Slopes(log_norms_C, by_logprob_C, entropy_2C)
            for rows, softmax in runs:
                softmax.differentiate(logits_CV[rows], drawn[rows], of_chunk[rows])
            torch.mm(logits_CV, self.weight_VD, out=grad_hidden_ND[chunk])
            if sink_VD is not None:
                for start in range(0, logits_CV.shape[1], self._grad_rows):
                    part = slice(start, start + self._grad_rows)
                    sink_VD[part].add_(logits_CV[:, part].t() @ hidden_CD)
        return grad_hidden_ND

    def _logits(self, hidden_CD: Tensor) -> Tensor:
        """Raw logits of one chunk, in a buffer that the next call overwrites."""
        num_rows = len(hidden_CD)
        if self._buffer is None or len(self._buffer) < num_rows:
            self._buffer = hidden_CD.new_empty(num_rows, self.weight_VD.shape[0])
        return torch.mm(hidden_CD, self.weight_VD.t(), out=self._buffer[:num_rows])

    def _runs(self, chunk: slice, processed: ProcessedTargets | None) -> list[tuple[slice, VocabularySoftmax]]:
        """The chunk's rows as slices, each with the softmax for its logits."""
        if processed is None:
            return [(slice(0, chunk.stop - chunk.start), self._softmax)]
        return [(rows, softmax or self._softmax) for rows, softmax in processed.runs(chunk)]

    def _chunks(self, num_tokens: int) -> list[slice]:
        size = self.chunk_rows
        return [slice(start, min(start + size, num_tokens)) for start in range(0, num_tokens, size)]
