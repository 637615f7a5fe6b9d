"""vLLM's transfer of weights by NCCL, from several ranks of a trainer, of which each sends its own pieces.

Knows: vLLM's NCCL transfer (0.32), messages of pieces.  Knows not: who trains.
Invariant: the groups are joined, and messages received, in the order of the ranks, as they are announced.
Never tried with a vLLM on a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_process_group
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine, NCCLWeightTransferUpdateInfo

from ludus_vllm.packed import Announcement


@dataclass(kw_only=True)
class RanksInfo(NCCLWeightTransferInitInfo):
    """vLLM's own, of the group with the first rank; and the ids of the groups with the others."""

    more_unique_ids_b64: list[str] = field(default_factory=list, repr=False)


@dataclass
class PiecesInfo(NCCLWeightTransferUpdateInfo):
    """vLLM's own; and for several ranks which pieces each sends."""

    pieces: Sequence[Sequence[Any]] | None = None
    """None: there is one rank, and it sends whole tensors."""
    groups: Sequence[Sequence[int]] = ()


class RankWeights(NCCLWeightTransferEngine):
    """Puts tensors together that come in pieces, and loads them into those that sample."""

    init_info_cls = RanksInfo
    update_info_cls = PiecesInfo
    more_groups: Sequence[Any] = ()

    def init_transfer_engine(self, init_info: RanksInfo) -> None:
        super().init_transfer_engine(init_info)
        others = [replace(init_info, nccl_unique_id_b64=each) for each in init_info.more_unique_ids_b64]
        self.more_groups = [worker_init_process_group(each, self.parallel_config) for each in others]

    def receive_weights(self, update_info: PiecesInfo) -> None:
        if update_info.pieces is None:
            super().receive_weights(update_info)
            return
        announced = Announcement(**vars(update_info))
        groups = (self.model_update_group, *self.more_groups)

        def receive(sender: int, message: torch.Tensor) -> None:
            groups[sender].broadcast(message, src=0, stream=torch.cuda.current_stream())

        for group in announced.groups:
            self.model.load_weights(announced.receive(group, receive, self.device))

    def shutdown(self) -> None:
        super().shutdown()
        for group in self.more_groups:
            group.destroy()
        self.more_groups = ()
