"""Which way new weights take to a vLLM server.

Knows: the ways there are, what each needs of server and command line.  Knows not: when weights are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.engines.kind import FILES, WITHOUT_FILES
from ludus.engines.settings import WeightRoute
from ludus.engines.vllm.cuda import IpcTransfer, NcclTransfer
from ludus.engines.vllm.settings import VllmSettings
from ludus.engines.vllm.weights import AdapterTransfer, FileTransfer, Transfer
from ludus.engines.weights import WeightFiles
from ludus_vllm import IPC_TRANSFER, NCCL_TRANSFER, TRANSFER

ROUTES: tuple[WeightRoute, ...] = (*FILES, *WITHOUT_FILES)


def vllm_delivery(settings: VllmSettings, files: WeightFiles | None) -> Mapping[str, Any]:
    """What `VllmEngine.connect` needs so that weights reach that server. files: None where they need none."""
    transfer: Transfer
    if files is None:
        transfer = NcclTransfer() if settings.weights == "nccl" else IpcTransfer()
    else:
        transfer = FileTransfer(files) if files.adapter_config is None else AdapterTransfer(files)
    return {
        "transfer": transfer,
        "keep_kv": settings.keep_kv_on_publish,
        "shares_card": settings.placement == "shared",
        "stream_interval": settings.stream_interval,
    }


def transfer_backend(settings: VllmSettings) -> str:
    """What the server is to be started with, for `--weight-transfer-config`."""
    return {"nccl": NCCL_TRANSFER, "ipc": IPC_TRANSFER}.get(settings.weights, TRANSFER)
