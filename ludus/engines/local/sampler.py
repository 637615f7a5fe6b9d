"""From final hidden states to tokens: the vocabulary head, then a draw for each row.

Knows: the head, buffers, the kernel that draws.  Knows not: pages, sequences, stop rules.
Shapes: N rows, D width of the hidden states, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ludus.engines.local.draws.base import SamplingKernel, SamplingRequest
from ludus.engines.sequence import SampledToken
from ludus.kernels import linear

# 256 rows of a 49,152-token vocabulary make 25 MB of logits in bf16. More rows would leave the caches for good, and a
# step rarely has more.
ROWS = 256
# Where torch multiplies, the rest of a division of rows among threads goes through another order of operations in fp32,
# so that the last bits of a row would depend on how many others are computed with it. With whole blocks of four they
# never do.
ROW_BLOCK = 4


class Sampler:
    """A buffer for the logits of up to ROWS rows, which saves their page faults; more rows are drawn in turn."""

    def __init__(self, head_VD: Tensor, kernel: SamplingKernel) -> None:
        self._kernel = kernel
        self.is_native = linear.unsupported_reason(head_VD) is None
        """Products give a row the same bits in any company."""
        self._logits_NV = head_VD.new_empty(ROWS, head_VD.shape[0], requires_grad=False)

    def __repr__(self) -> str:
        return f"<Sampler {self._kernel!r}>"

    def draw(
        self, hidden_ND: Tensor, head_VD: Tensor, requests: Sequence[SamplingRequest], *, softcap: float | None
    ) -> list[SampledToken]:
        """One token per row of final hidden states, in their order."""
        draws: list[SampledToken] = []
        for start in range(0, len(requests), ROWS):
            part = slice(start, start + ROWS)
            logits_NV = self.logits(hidden_ND[part], head_VD)
            draws += self._kernel.draw(logits_NV, requests[part], softcap=softcap)
        return draws

    def logits(self, hidden_ND: Tensor, head_VD: Tensor) -> Tensor:
        """What the head makes of up to ROWS rows, before its cap; the next call overwrites it."""
        num_rows = len(hidden_ND)
        if self.is_native:
            return linear.linear(hidden_ND, head_VD, out=self._logits_NV[:num_rows])
        if num_rows % ROW_BLOCK:
            hidden_ND = torch.cat([hidden_ND, hidden_ND.new_zeros(-num_rows % ROW_BLOCK, hidden_ND.shape[1])])
        return torch.mm(hidden_ND, head_VD.t(), out=self._logits_NV[: len(hidden_ND)])[:num_rows]
