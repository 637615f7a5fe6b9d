"""A model folder with random weights: the shape of a configuration, the tokenizer of another model.

Knows: transformers' configurations, the files of a model folder.  Knows not: what such a model is for.
Speed depends on shapes alone, so a benchmark needs no download of weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ludus.errors import UserError
from ludus.models.config import ModelConfig
from ludus.models.load import copy_companions, quiet
from ludus.models.resolve import resolve_model


def make_untrained(config_file: Path, folder: Path, *, tokenizer: str, seed: int) -> None:
    """Write a model of the shape in `config_file`, with random weights in bf16, to `folder`.

    config_file: JSON as in any transformers model's config.json. tokenizer: the model whose tokenizer, chat template
    and generation settings it gets. The weights depend on the seed alone, and lie in memory until they are written.
    Raises UserError if the shape cannot be served, if the tokenizer does not fit into it, or if `folder` is in use.
    """
    config = _read_config(config_file)
    vocab_size = ModelConfig.from_hf(config).vocab_size
    source = resolve_model(tokenizer)
    num_ids = tokenizers.Tokenizer.from_file(str(source / "tokenizer.json")).get_vocab_size()
    if num_ids > vocab_size:
        raise UserError(
            f"the tokenizer of {tokenizer!r} has {num_ids} tokens, and {config_file} a vocabulary of {vocab_size}; "
            "name a model with a smaller tokenizer"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty; name a folder that is not there yet")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with quiet():
        module.save_pretrained(folder)
    copy_companions(source, folder)


def _read_config(file: Path) -> Any:
    if not file.is_file():
        raise UserError(f"no configuration {file}; name a file such as the config.json of a model")
    try:
        return AutoConfig.from_pretrained(file, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file} is no configuration that transformers knows: {error}") from error
