"""vLLM's transfer of weights through CUDA's shared memory, with handles that are told in JSON instead of a pickle.

Knows: vLLM's IPC transfer (0.32), what torch needs to open a handle.  Knows not: who shares the memory.
Tried on a card without vLLM.
"""

from __future__ import annotations

import base64
from typing import Any

import torch
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine, IPCWeightTransferUpdateInfo

_BYTES = (0, 4, 6)
"""Which parts of a storage's handle are bytes: the storage, its counter and its event."""


class IpcWeights(IPCWeightTransferEngine):
    """Opens the handles of one bucket of tensors and copies what they hold into the tensors that sample."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> IPCWeightTransferUpdateInfo:
        told = dict(update_dict)
        card, handles = told.pop("card"), told.pop("handles")
        return IPCWeightTransferUpdateInfo(**told, ipc_handles=[{card: _arguments(handle)} for handle in handles])


def _arguments(handle: dict[str, Any]) -> tuple[Any, ...]:
    """Those of torch's `rebuild_cuda_tensor`; vLLM puts its own number of the card in the place of the seventh."""
    storage = [base64.b64decode(part) if idx in _BYTES else part for idx, part in enumerate(handle["storage"])]
    return (
        torch.Tensor,
        torch.Size(handle["size"]),
        tuple(handle["stride"]),
        handle["offset"],
        torch.storage.TypedStorage,
        getattr(torch, handle["dtype"]),
        0,
        *storage,
    )
