"""A decoder that says one number of each token in the place of a vocabulary: what a critic and a reward model are.

Knows: transformers' modules, the name of such a head in files.  Knows not: what the number means, losses.
Invariant: the head is an output embedding of one row, so whatever moves, cuts and saves the weights of a model does so
with these; it begins as it was saved, or with zeros, so that an untrained one says 0 of everything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from safetensors import safe_open
from torch import nn

from ludus.errors import UserError
from ludus.models.load import HEAD_NAME, LoadedModel


def with_scalar_head(model: LoadedModel) -> LoadedModel:
    """The model with a head of one row, which is trained; `model` itself must not be used any more.

    model: whole, or loaded with `is_mapped` and not cut yet. Raises UserError if the saved head is not of one row.
    """
    old, module = model.head_weight, model.module
    weight = torch.zeros(1, old.shape[1], dtype=old.dtype, device=old.device)
    for path in sorted(model.folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if HEAD_NAME in set(file.keys()):
                saved = file.get_tensor(HEAD_NAME)
                if saved.shape != weight.shape:
                    raise UserError(
                        f"{HEAD_NAME} in {str(path)!r} must have the shape {tuple(weight.shape)}, one number of each "
                        f"token, got {tuple(saved.shape)}; take a model that was trained with num_labels=1"
                    )
                weight.copy_(saved)
    head = nn.Linear(old.shape[1], 1, bias=False, device="meta")
    head.weight = nn.Parameter(weight)
    module.config.tie_word_embeddings = False
    module.set_output_embeddings(cast(nn.Module, head))
    trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    return replace(model, trainable=trainable)
