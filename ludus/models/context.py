"""Rows whose tokens are cut over several processes: in attention each trades its tokens for some heads of all tokens.

Knows: queries, keys and values of one layer, groups of processes.  Knows not: trees; those are plans of whole rows.
Invariant: a head attends as it does in one process, over the whole row, so that every kernel and every kind of tree
serves, and no process has more pairs of tokens to compute than its share of heads.

    before   rank 0: tokens 0..3 of all heads        rank 1: tokens 4..7 of all heads
    within   rank 0: all tokens of heads 0, 1        rank 1: all tokens of heads 2, 3

No process ever holds keys and values of all heads of a whole row: tokens times heads stay its share throughout.

Source: DeepSpeed Ulysses (arXiv 2309.14509) sec. 3.1. Passing keys and values around instead (ring attention) would
need kernels for parts of trees, and leave those that come first in the row with little to do.

H: heads, Hk: key heads, h: heads of this process, S: tokens of the row, T: tokens of this process, Dh: width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ludus.errors import UserError
from ludus.kernels.library import AttentionRule
from ludus.models.attention import AttentionPlan


@dataclass(frozen=True, slots=True)
class HeadShares:
    """How many heads each process attends with."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    repeats: int
    """How often each key head is repeated before, where there are fewer of them than processes."""

    @classmethod
    def of(cls, num_heads: int, num_key_heads: int, num_shares: int) -> HeadShares:
        """As equal as whole groups of queries with one key head can be. Raises UserError if some would get none."""
        if num_heads < num_shares:
            raise UserError(
                f"trainer.context_parallel={num_shares} cuts attention by heads, and the model has {num_heads}; set it "
                f"to {num_heads} at most"
            )
        group = num_heads // num_key_heads
        choices = [each for each in range(1, group + 1) if group % each == 0 and num_key_heads * each >= num_shares]
        equal = (each for each in choices if num_key_heads * each % num_shares == 0)
        repeats = next(equal, choices[0])
        num_units = num_key_heads * repeats
        keys = tuple(num_units // num_shares + (rank < num_units % num_shares) for rank in range(num_shares))
        return cls(tuple(each * (group // repeats) for each in keys), keys, repeats)


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """An attention plan of whole rows, for a process that has a part of each."""

    plan: AttentionPlan
    group: dist.ProcessGroup
    """In which each process has one part, in order."""

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """Output of this process's tokens; see AttentionPlan. Differentiable by q, k, v and the rule's sinks."""
        rank = dist.get_rank(self.group)
        shares = HeadShares.of(q.shape[1], k.shape[1], dist.get_world_size(self.group))
        if shares.repeats > 1:
            k, v = (each.repeat_interleave(shares.repeats, dim=1) for each in (k, v))
        if rule.sinks is not None:
            rule = replace(rule, sinks=torch.split(rule.sinks, list(shares.queries))[rank])
        counts = (shares.queries, shares.keys, shares.keys)
        whole = [_trade(each, count, self.group) for each, count in zip((q, k, v), counts, strict=True)]
        output = self.plan.attend(layer_idx, whole[0], whole[1], whole[2], rule)
        return _trade(output.transpose(1, 2), shares.queries, self.group, back=True).transpose(1, 2)


def _trade(heads: Tensor, counts: Sequence[int], group: dist.ProcessGroup, *, back: bool = False) -> Tensor:
    """(1, H, T, Dh) as (1, h, S, Dh); `back`: the other way. counts: heads of each process."""
    traded: Tensor = _Trade.apply(heads, counts, group, back)  # type: ignore[no-untyped-call]
    return traded


class _Trade(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, counts: Sequence[int], group: dist.ProcessGroup, back: bool) -> Tensor:
        ctx.counts, ctx.group, ctx.back = counts, group, back
        return (_to_tokens if back else _to_heads)(heads, counts, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (_to_heads if ctx.back else _to_tokens)(grad, ctx.counts, ctx.group), None, None, None


def _to_heads(heads: Tensor, counts: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    own, size = counts[dist.get_rank(group)], len(counts)
    _, _, num_tokens, width = heads.shape
    received = heads.new_empty(size * own, num_tokens, width)
    dist.all_to_all_single(received, heads[0].contiguous(), [own] * size, list(counts), group=group)
    return received.view(size, own, num_tokens, width).transpose(0, 1).reshape(1, own, size * num_tokens, width)


def _to_tokens(heads: Tensor, counts: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    own, size = counts[dist.get_rank(group)], len(counts)
    _, _, num_tokens, width = heads.shape
    sent = heads[0].reshape(own, size, num_tokens // size, width).transpose(0, 1).flatten(0, 1).contiguous()
    received = heads.new_empty(sum(counts), num_tokens // size, width)
    dist.all_to_all_single(received, sent, list(counts), [own] * size, group=group)
    return received[None]
