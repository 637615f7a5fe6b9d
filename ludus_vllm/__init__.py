"""A plugin of vLLM: weights that Ludus trains reach a vLLM server by files, through the memory of a CUDA card, or from
the cards of several ranks.

Knows: vLLM's registry of weight transfer engines.  Knows not: Ludus; it is imported where only vLLM is installed.
vLLM finds it by the entry point group `vllm.general_plugins`, and calls `register` in every process of a server.
"""

from __future__ import annotations

TRANSFER = "ludus_shm"
IPC_TRANSFER = "ludus_ipc"
NCCL_TRANSFER = "ludus_nccl"
"""Names for `--weight-transfer-config`."""


def register() -> None:
    """Make the transfers known, however often it is called; a module is imported when a server asks for it."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    transfers = {
        TRANSFER: ("ludus_vllm.files", "FileWeights"),
        IPC_TRANSFER: ("ludus_vllm.ipc", "IpcWeights"),
        NCCL_TRANSFER: ("ludus_vllm.ranks", "RankWeights"),
    }
    for name, (module, class_name) in transfers.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, module, class_name)
