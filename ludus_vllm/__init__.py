"""A plugin of vLLM: weights that Ludus trains reach a vLLM server by files, in shared memory or on a disk.

Knows: vLLM's registry of weight transfer engines.  Knows not: Ludus; it is imported where only vLLM is installed.
vLLM finds it by the entry point group `vllm.general_plugins`, and calls `register` in every process of a server.
"""

from __future__ import annotations

TRANSFER = "ludus_shm"
"""The name for `--weight-transfer-config`."""


def register() -> None:
    """Make the transfer known, however often it is called; its module is imported when a server asks for it."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    if TRANSFER not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(TRANSFER, "ludus_vllm.files", "FileWeights")
