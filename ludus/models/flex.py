"""torch's flex_attention as both sides use it on a CUDA card: compiled, with capped scores.

Knows: torch's compiler.  Knows not: trees, pages; those are masks that callers bring.
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

# Kernels of one function: a dozen batch sizes, with and without a window, with and without gradients. torch would
# give up after eight.
_MOST_KERNELS = 128
# Queries that share one list of keys to read, torch's own default; every tile of its kernels divides it.
QUERY_BLOCK = 128


def compiled(function: Callable[..., Tensor], device: torch.device, *, by_size: bool) -> Callable[..., Tensor]:
    """`function`, which calls flex_attention, fused for a card; as it is elsewhere.

    by_size: every size gets a kernel of its own; else one kernel serves all sizes after the first. Every compiled
    function must be a function of its own in the source: torch counts kernels by the place where they were written.
    """
    if device.type != "cuda":
        return function
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_KERNELS)
    # not dynamic=True: that makes variables of the numbers inside a rule too, which the kernels cannot take
    return torch.compile(function, dynamic=False if by_size else None, fullgraph=True)


def cap_scores(softcap: float | None) -> ScoreRule | None:
    """The rule that makes scores s into softcap * tanh(s / softcap). None: they stay."""
    if softcap is None:
        return None

    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del batch, head, query, key
        return softcap * torch.tanh(score / softcap)

    return capped
