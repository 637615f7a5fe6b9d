"""A model folder written tensor by tensor, for weights that are nowhere together.

Knows: what plain transformers and peft read.  Knows not: where the tensors come from.
Invariant: of the weights no more is in memory than goes into one file.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from ludus.model.load import LoadedModel, copy_companions, quiet

# As the hub's large models are cut, and no burden for a machine that trains one.
MAX_FILE_BYTES = 5_000_000_000
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def export_model(
    model: LoadedModel,
    tensors: Iterable[tuple[str, Tensor]],
    folder: Path,
    *,
    chat_template: str | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write what `save_model` writes, with the trained weights from `tensors`: names as in the saved model.

    model: may hold no weights of its own.  max_file_bytes: of one file, if no single tensor is larger.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if model.adapter is not None:
        _write_adapter(model, dict(tensors), folder)
    else:
        model.module.config.save_pretrained(folder)
        if model.module.can_generate():
            model.module.generation_config.save_pretrained(folder)
        _write_whole(tensors, folder, max_file_bytes)
    copy_companions(model, folder, chat_template=chat_template)


def _write_adapter(model: LoadedModel, tensors: dict[str, Tensor], folder: Path) -> None:
    assert model.adapter is not None, "there is an adapter to write"
    (config,) = (copy.copy(each) for each in model.adapter.peft_config.values())
    config.inference_mode = True
    with quiet():
        config.save_pretrained(str(folder))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _write_whole(tensors: Iterable[tuple[str, Tensor]], folder: Path, max_file_bytes: int) -> None:
    drafts: list[tuple[Path, list[str]]] = []
    gathered: dict[str, Tensor] = {}
    num_bytes = total_bytes = 0

    def write() -> None:
        draft = folder / f".draft-{len(drafts)}.safetensors"
        save_file(gathered, draft, metadata={"format": "pt"})
        drafts.append((draft, list(gathered)))
        gathered.clear()

    for name, tensor in tensors:
        if gathered and num_bytes + tensor.nbytes > max_file_bytes:
            write()
            num_bytes = 0
        gathered[name] = tensor
        num_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
    write()
    if len(drafts) == 1:
        drafts[0][0].replace(folder / _SINGLE)
        return
    places: dict[str, str] = {}
    for number, (draft, names) in enumerate(drafts, start=1):
        path = folder / f"model-{number:05d}-of-{len(drafts):05d}.safetensors"
        draft.replace(path)
        places |= dict.fromkeys(names, path.name)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": places}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
