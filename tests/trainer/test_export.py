"""A model folder written tensor by tensor, over what was there before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from ludus.models.load import load_model, save_model
from ludus.models.settings import ModelSettings
from ludus.trainer.export import MAX_FILE_BYTES, export_model


@pytest.mark.parametrize("sizes", [(100_000,), (100_000, 200_000), (100_000, MAX_FILE_BYTES)])
def test_the_weights_of_an_earlier_save_are_gone(
    sizes: tuple[int, ...], tiny_model_folder: Path, tmp_path: Path
) -> None:
    """However many files the weights were cut into before, plain transformers loads the new ones."""
    model = load_model(ModelSettings(path=str(tiny_model_folder), dtype="float32"))
    save_model(model, tmp_path)
    for number, max_file_bytes in enumerate(sizes, start=1):
        moved = model.saved((name, each.detach() + number) for name, each in model.trainable.items())
        export_model(model, moved, tmp_path, max_file_bytes=max_file_bytes)
    loaded = dict(transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).named_parameters())
    name, weight = next(iter(model.trainable.items()))
    assert torch.equal(loaded[name], weight + len(sizes))
