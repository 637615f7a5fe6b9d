"""torch's flex_attention as training uses it on a CUDA card: compiled, with capped scores.

Knows: torch's compiler.  Knows not: trees; those are masks that callers bring.
flex_attention makes one fused kernel out of a rule in Python that says which query sees which key. Without compiling
it works too, on any device and with all scores in memory at once; tests run it so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ScoreRule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, batch, head, query, key) → score"""
MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) → whether the query sees the key"""

# Kernels of one function: with and without a window, a cap, gradients, in every type. torch would give up after eight.
_MOST_KERNELS = 128
# Queries that share one list of keys to read, torch's own default; every tile of its kernels divides it.
QUERY_BLOCK = 128


def compiled(function: Callable[..., Tensor], device: torch.device) -> Callable[..., Tensor]:
    """`function`, which calls flex_attention; on a card fused, one kernel for all sizes after the first."""
    if device.type != "cuda":
        return function
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_KERNELS)
    # not dynamic=True: that makes variables of the numbers inside a rule too, which the kernels cannot take
    return torch.compile(function, dynamic=None, fullgraph=True)


def cap_scores(softcap: float | None) -> ScoreRule | None:
    """The rule that makes scores s into softcap * tanh(s / softcap). None: they stay."""
    if softcap is None:
        return None

    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del batch, head, query, key
        return softcap * torch.tanh(score / softcap)

    return capped
