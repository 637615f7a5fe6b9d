"""A model's weights cut over the ranks of a process group: every rank keeps some rows of each of them.

Knows: FSDP2, layers.  Knows not: losses, optimizers, who starts the ranks.
Invariants: a rank keeps the rows of every parameter that `torch.chunk` would give it; a layer is whole only while it
computes; gradients of all ranks are summed, not averaged, for the weights of a batch's targets sum over all of them.

Outside of the layers lie the embedding, the last norm and the head. They are whole from the beginning of a forward pass
to the end of its backward pass, or until `model.release()`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ludus.models.context import HeadShares
from ludus.models.groups import RankGroups
from ludus.models.load import LoadedModel, ReshardableModule


class _Decoder(nn.Module):
    """The decoder of a causal model as one forward pass, with the head among its weights."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: Any) -> Any:
        return cast(Any, self.module).base_model(**inputs)


def shard_model(model: LoadedModel, groups: RankGroups) -> LoadedModel:
    """The model with its weights cut over all ranks, and rows over those of one; `model` itself must not be used any
    more.

    model: one that was loaded with `is_mapped`.
    Raises UserError if the model cannot be cut so.
    """
    if groups.context is not None:
        config = model.config
        HeadShares.of(config.num_heads, config.num_kv_heads, groups.part.count)  # refused now, not in the first step
    mesh = groups.all
    decoder = _Decoder(model.module)
    # the few that no training of all weights changes stay whole, as buffers do
    fixed = {each for each in model.untrained.values() if isinstance(each, nn.Parameter)}
    for each in fixed:
        each.data = each.data.to(mesh.device_type)
    for part in (*model.layers, decoder):
        # bf16 gradients of many ranks are summed in fp32
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        fully_shard(part, mesh=mesh, mp_policy=policy, ignored_params=fixed)
        shards = cast(FSDPModule, part)
        shards.set_gradient_divide_factor(1.0)
        shards.set_force_sum_reduction_for_comms(True)  # gloo has no other one
    trainable = {name: each for name, each in model.module.named_parameters() if each.requires_grad}
    split = {"part": groups.part, "context": groups.context}
    return replace(model, trainable=trainable, gathering=cast(ReshardableModule, decoder), **split)


def local_rows(tensor: Tensor) -> Tensor:
    """This rank's rows of a parameter that is cut, or of its gradient; they share its memory."""
    assert isinstance(tensor, DTensor), "the weights of a sharded model are distributed tensors"
    rows: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return rows
