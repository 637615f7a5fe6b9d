"""Activation checkpointing: layers run again in the backward pass, so that their activations need not be kept.

Knows: the layers of a model.  Knows not: what is inside them, losses, rows.
Invariant: the same modules compute the same values; only what autograd keeps changes, and sampling, which runs without
autograd, does not change at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ludus.models.load import LoadedModel


def recompute_layers(model: LoadedModel) -> None:
    """Have every layer keep only its input for the backward pass, and run again there."""
    for layer in model.layers:
        layer.forward = _Recomputed(layer.forward)


@dataclass(frozen=True, slots=True)
class _Recomputed:
    forward: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        return checkpoint(self.forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
