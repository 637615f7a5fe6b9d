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
    """The ranks of one row. None: every rank has whole rows."""

    @classmethod
    def form(cls, device: torch.device, size: int, *, context: int = 1) -> RankGroups:
        """Every rank must call it. context: ranks of a row, a divisor of `size`."""
        ranks = torch.arange(size)
        everyone = DeviceMesh(device.type, ranks)
        if context == 1:
            return cls(everyone, WHOLE_ROW, None)
        mesh = DeviceMesh(device.type, ranks.view(-1, context), mesh_dim_names=("data", "context"))
        group = mesh.get_group("context")
        return cls(everyone, RowPart(dist.get_rank(group), context), group)
