"""Writes a model folder tensor by tensor, for weights that no process holds as a whole.

Knows: what plain transformers and peft read.  Knows not: where the tensors come from.
Invariant: one tensor at a time is in memory, whatever the size of the model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from pathlib import Path

from torch import Tensor
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from ludus.engines.weights import write_safetensors
from ludus.errors import UserError
from ludus.models.load import (
    ADAPTER_FILE,
    HEAD_NAME,
    WHOLE_FILE,
    LoadedModel,
    copy_companions,
    quiet,
    remove_other_weights,
)

# The usual size of files on the hub.
MAX_FILE_BYTES = 5_000_000_000
# transformers requires it in every file.
_METADATA = {"format": "pt"}


def export_model(
    model: LoadedModel,
    tensors: Iterable[tuple[str, Tensor]],
    folder: Path,
    *,
    chat_template: str | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write what `save_model` writes, with the trained weights from `tensors`, in the order of the trained parameters.

    model: of its own tensors only those that are not trained are read.
    max_file_bytes: largest size of a file, unless a single tensor is larger.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if model.adapter is not None:
        (config,) = (copy.copy(each) for each in model.adapter.peft_config.values())
        config.inference_mode = True
        with quiet():
            config.save_pretrained(str(folder))
        write_safetensors(folder / ADAPTER_FILE, tensors, _METADATA)
        written = {ADAPTER_FILE}
    else:
        model.module.config.save_pretrained(folder)
        if model.module.can_generate():
            model.module.generation_config.save_pretrained(folder)
        rest = dict(model.saved(model.untrained.items()))
        sizes = {name: each.nbytes for name, each in (*model.saved_shapes.items(), *rest.items())}
        written = _write_whole(sizes, chain(tensors, rest.items()), folder, max_file_bytes)
    remove_other_weights(model, folder, written)
    copy_companions(model.folder, folder, chat_template=chat_template)


def export_scalar_model(model: LoadedModel, folder: Path, *, pad_id: int) -> None:
    """Write a model `with_scalar_head` so that transformers' AutoModelForSequenceClassification loads it.

    pad_id: transformers' padding token: it takes the score of the last token that is not padding.
    Raises UserError if transformers has no such class for the model, or if it has adapters.
    """
    made_for = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(model.module.config), None)
    if model.adapter is not None or made_for is None:
        what = "it has adapters" if made_for else f"there is none for {model.config.architecture}"
        raise UserError(f"{what}: a reward model is written as transformers' model for sequences, with all its weights")
    config = copy.deepcopy(model.module.config)
    config.architectures, config.num_labels, config.pad_token_id = [made_for.__name__], 1, pad_id
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    tensors = model.saved(
        (HEAD_NAME if each is model.head_weight else name, each.detach())
        for name, each in (*model.trainable.items(), *model.untrained.items())
    )
    write_safetensors(folder / WHOLE_FILE, tensors, _METADATA)
    remove_other_weights(model, folder, {WHOLE_FILE})
    copy_companions(model.folder, folder)


def _write_whole(
    sizes: Mapping[str, int], tensors: Iterable[tuple[str, Tensor]], folder: Path, max_file_bytes: int
) -> set[str]:
    """The names of the files that were written."""
    files = _shared_out(sizes, max_file_bytes)
    if len(files) == 1:
        write_safetensors(folder / WHOLE_FILE, tensors, _METADATA)
        return {WHOLE_FILE}
    places: dict[str, str] = {}
    left = iter(tensors)
    for number, names in enumerate(files, start=1):
        path = folder / f"model-{number:05d}-of-{len(files):05d}.safetensors"
        write_safetensors(path, islice(left, len(names)), _METADATA)
        places |= dict.fromkeys(names, path.name)
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
    path = folder / f"{WHOLE_FILE}.index.json"
    path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return {path.name, *places.values()}


def _shared_out(sizes: Mapping[str, int], max_file_bytes: int) -> list[list[str]]:
    """The names of each file, in order."""
    files: list[list[str]] = [[]]
    num_bytes = 0
    for name, size in sizes.items():
        if files[-1] and num_bytes + size > max_file_bytes:
            files.append([])
            num_bytes = 0
        files[-1].append(name)
        num_bytes += size
    return files
