"""Which way new weights take to a vLLM server.

Knows: the ways there are, what each needs of server and command line.  Knows not: when weights are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.engines.http.vllm_cuda import IpcTransfer, NcclTransfer
from ludus.engines.http.vllm_weights import AdapterTransfer, FileTransfer, Transfer
from ludus.engines.settings import EngineSettings, WeightRoute
from ludus.engines.weights import WeightFiles
from ludus_vllm import IPC_TRANSFER, TRANSFER

ROUTES: tuple[WeightRoute, ...] = ("shared_memory", "disk", "nccl", "ipc")
WITHOUT_FILES: tuple[WeightRoute, ...] = ("nccl", "ipc")


def vllm_delivery(settings: EngineSettings, files: WeightFiles | None) -> Mapping[str, Any]:
    """What `VllmEngine.connect` needs so that weights reach that server. files: None where they need none."""
    return {"transfer": _transfer(settings, files), "keep_kv": settings.keep_kv_on_publish}


def transfer_backend(settings: EngineSettings) -> str:
    """What the server is to be started with, for `--weight-transfer-config`."""
    return {"nccl": "nccl", "ipc": IPC_TRANSFER}.get(settings.weights, TRANSFER)


def _transfer(settings: EngineSettings, files: WeightFiles | None) -> Transfer:
    if files is None:
        return NcclTransfer() if settings.weights == "nccl" else IpcTransfer()
    return FileTransfer(files) if files.adapter_config is None else AdapterTransfer(files)
