"""A model's weights cut over the ranks of a process group: every rank keeps a piece of each of them.

Knows: FSDP2, layers.  Knows not: losses, optimizers, who starts the ranks.
Invariants: a rank keeps the rows of every parameter that `torch.chunk` would give it; where ranks compute with parts of
layers (`tensor_parallel.py`), it keeps rows of its part. A layer, or a rank's part of it, is whole only while it
computes; gradients of all ranks are summed, not averaged, for the weights of a batch's targets sum over all of them.

Outside of the layers lie the embedding, the last norm and the head. They are whole from the beginning of a forward pass
to the end of its backward pass, or until `model.release()`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ludus.models.context import HeadShares
from ludus.models.groups import RankGroups
from ludus.models.load import LoadedModel, ReshardableModule
from ludus.models.pieces import Piece, rows_of
from ludus.models.tensor_parallel import check_layers, cut_layer


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
    config, together = model.config, groups.part.together
    if groups.context is not None:  # refused now, not in the first step
        HeadShares.of(
            config.num_heads // together, config.num_kv_heads // together, dist.get_world_size(groups.context)
        )
    mesh, tensor = groups.all, groups.tensor
    placements = [] if tensor is None else check_layers(model, tensor["tensor"].size())
    decoder = _Decoder(model.module)
    # the few that no training of all weights changes stay whole, as buffers do
    fixed = {each for each in model.untrained.values() if isinstance(each, nn.Parameter)}
    for each in fixed:
        each.data = each.data.to(mesh.device_type)
    for number, part in enumerate((*model.layers, decoder)):
        if tensor is not None and part is not decoder:
            # each just before its rows are shared out: a card has no room for the parts of all layers
            cut_layer(part, placements[number], tensor["tensor"])
        # bf16 gradients of many ranks are summed in fp32
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        over = mesh if part is decoder or tensor is None else tensor["rows"]
        fully_shard(part, mesh=over, mp_policy=policy, ignored_params=fixed)
        shards = cast(FSDPModule, part)
        shards.set_gradient_divide_factor(1.0)
        shards.set_force_sum_reduction_for_comms(True)  # gloo has no other one
    trainable = {name: each for name, each in model.module.named_parameters() if each.requires_grad}
    gathering = cast(ReshardableModule, decoder)
    return replace(model, trainable=trainable, gathering=gathering, part=groups.part, context=groups.context)


def local_piece(tensor: Tensor) -> Tensor:
    """This rank's piece of a parameter that is cut, or of its gradient; they share its memory."""
    assert isinstance(tensor, DTensor), "the weights of a sharded model are distributed tensors"
    own: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return own


def piece_of(parameter: Tensor, rank: int, size: int) -> Piece:
    """What one of `size` ranks keeps of a parameter: rows, or of the part that it computes with rows."""
    num_rows, (of_part, num_parts) = parameter.shape[0], _part_of(parameter)
    sharing, part = divmod(rank, num_parts)
    num_sharing = size // num_parts
    if isinstance(of_part, Shard) and of_part.dim == 0:
        first = part * (num_rows // num_parts)
        rows = rows_of(num_rows // num_parts, sharing, num_sharing)
        return (slice(first + rows.start, first + rows.stop),)
    rows = rows_of(num_rows, sharing, num_sharing)
    if isinstance(of_part, Shard):
        num_columns = parameter.shape[1] // num_parts
        return rows, slice(part * num_columns, (part + 1) * num_columns)
    return (rows,)


def is_copy(parameter: Tensor, rank: int) -> bool:
    """Whether an earlier rank keeps the same piece, because both compute with all of the parameter."""
    of_part, num_parts = _part_of(parameter)
    return of_part.is_replicate() and rank % num_parts > 0


def _part_of(parameter: Tensor) -> tuple[Placement, int]:
    """How a parameter is cut between ranks that compute with parts of it, and into how many parts."""
    if not isinstance(parameter, DTensor) or parameter.device_mesh.ndim == 1:
        return Replicate(), 1
    return parameter.placements[1], parameter.device_mesh.size(1)
