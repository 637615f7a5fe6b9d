"""A plugin of vLLM: weights that Ludus trains reach a vLLM server by files, in shared memory or on a disk.

Knows: vLLM's registry of weight transfer engines.  Knows not: Ludus; it is imported where only vLLM is installed.
vLLM finds it by the entry point group `vllm.general_plugins`, and calls `register` in every process of a server.
"""

from __future__ import annotations

BACKENDS = {"ludus_shm": ("ludus_vllm.files", "FileWeights")}
"""Name for `--weight-transfer-config`, module and class, imported when a server asks for it."""


def register() -> None:
    """Make the backends known, however often it is called."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    for name, (module, class_name) in BACKENDS.items():
        if name not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(name, module, class_name)
