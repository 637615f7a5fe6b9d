"""How the ranks of a trainer are grouped: all keep a share of the weights, some compute one row together.

Knows: torch's meshes of devices.  Knows not: weights, rows.
Invariant: the ranks of one row are neighbours, in the order of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ludus.algorithms.share import WHOLE_ROW, RowPart


@dataclass(frozen=True, slots=True)
class RankGroups:
    """The groups that one rank is in."""

    all: DeviceMesh
    """Over these weights are cut."""
    part: RowPart
    """What this rank computes of a row."""
    context: dist.ProcessGroup | None
    """The ranks over whose tokens of a row each head attends. None: this one has all of them."""
    tensor: DeviceMesh | None
    """Of two dimensions: `rows`, over which parts of layers are cut at rest, and `tensor`, the ranks that compute one
    layer in parts. None: every rank computes whole layers."""

    @classmethod
    def form(cls, device: torch.device, size: int, *, context: int = 1, tensor: int = 1) -> RankGroups:
        """Every rank must call it. context, tensor: ranks of those groups; `size` is a multiple of their product."""
        ranks = torch.arange(size)
        everyone = DeviceMesh(device.type, ranks)
        if context * tensor == 1:
            return cls(everyone, WHOLE_ROW, None, None)
        part = RowPart(dist.get_rank() % (context * tensor), context * tensor, tensor)
        mesh = DeviceMesh(device.type, ranks.view(-1, context, tensor), mesh_dim_names=("data", "context", "tensor"))
        return cls(
            everyone,
            part,
            context=mesh.get_group("context") if context > 1 else None,
            tensor=DeviceMesh(device.type, ranks.view(-1, tensor), mesh_dim_names=("rows", "tensor"))
            if tensor > 1
            else None,
        )
