"""Our attention inside transformers' modules: one hook, and the plan that each forward pass brings along.

Knows: transformers' attention interface.  Knows not: pages, trees, batches; those are plans.
Invariant: no attention mask is ever built by transformers, because no mask function is registered under our name.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from ludus.errors import InternalError, UserError
from ludus.kernels.library import AttentionRule

ATTENTION_NAME = "ludus"


class AttentionPlan(Protocol):
    """Who attends to whom in one forward pass; travels as the keyword argument `plan` through all layers."""

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """Attention output of one layer, shape (B, S, H, Dh).

        q: (B, H, S, Dh), k and v: (B, Hk, S, Dh), rotary positions already applied.
        """


def attend_by_plan(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    plan: AttentionPlan | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: hands the layer's queries, keys and values to the plan."""
    if plan is None or attention_mask is not None:
        raise InternalError("a forward pass with Ludus's attention needs the argument `plan` and no attention mask")
    if s_aux is not None:
        raise UserError(f"{type(module).__name__} uses attention sinks, which Ludus does not serve")
    layer_idx = module.layer_idx
    assert isinstance(layer_idx, int), f"layer_idx of {type(module).__name__} must be int but is {layer_idx!r}"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return plan.attend(layer_idx, query, key, value, AttentionRule(scale, sliding_window, softcap)), None


def register_attention() -> None:
    """Make our attention known to transformers under ATTENTION_NAME. Calling it again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, attend_by_plan)
