"""Weights in a safetensors file, in shared memory or on a disk that both sides see, as a weight transfer of vLLM.

Knows: vLLM's interface for weight transfers (0.32), safetensors.  Knows not: who wrote the file.
Invariant: only files of the folder that the trainer named at the beginning are read.

The file is mapped, not copied: every worker reads of it what its share of the model needs. An update without a file
replaces no weight; what vLLM does after every update, forgetting the adapters it has loaded, makes it read the files
of an adapter anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform


@dataclass
class FolderInfo(WeightTransferInitInfo):
    """Where the files of weights will lie."""

    folder: str


@dataclass
class FileInfo(WeightTransferUpdateInfo):
    """The file of one version, by its name in the folder."""

    file: str


class FileWeights(WeightTransferEngine[FolderInfo, FileInfo]):
    """Loads a version of the weights from its file into the tensors that sample."""

    init_info_cls = FolderInfo
    update_info_cls = FileInfo
    folder: Path | None = None
    """None: the trainer has named none yet."""
    has_begun = False
    """The layers wait for their weights."""

    def init_transfer_engine(self, init_info: FolderInfo) -> None:
        self.folder = Path(init_info.folder).resolve(strict=True)

    def start_weight_update(self) -> None:
        self.has_begun = False

    def receive_weights(self, update_info: FileInfo) -> None:
        if self.folder is None:
            raise RuntimeError("no folder of weights was named; call /init_weight_transfer_engine first")
        path = (self.folder / update_info.file).resolve(strict=True)
        if path.parent != self.folder:
            raise ValueError(f"file={update_info.file!r} is not in {self.folder}; name a file of that folder")
        if not self.has_begun:
            initialize_layerwise_reload(self.model)
            self.has_begun = True
        self.model.load_weights(_tensors(path))

    def finish_weight_update(self) -> None:
        if self.has_begun:
            finalize_layerwise_reload(self.model, self.model_config)
            if current_platform.is_cpu():
                _pack_heads_again(self.model)
        self.has_begun = False

    def shutdown(self) -> None:
        self.folder = None


def _pack_heads_again(model: torch.nn.Module) -> None:
    """On a processor a layer multiplies a packed copy of its weight; a head that shares the embedding's weight was
    loaded as part of that, and its copy is still the old one."""
    for layer in model.modules():
        if isinstance(layer, VocabParallelEmbedding) and "cpu_linear" in vars(layer):
            layer.quant_method.process_weights_after_loading(layer)


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.offset_keys():  # as they lie in the file
            yield name, file.get_tensor(name)
