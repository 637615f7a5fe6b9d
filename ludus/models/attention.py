"""Our attention inside transformers' modules: one hook, and the plan that each forward pass brings along.

Knows: transformers' attention interface.  Knows not: pages, trees, batches; those are plans.
Invariant: no attention mask is ever built by transformers, because no mask function is registered under our name.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from ludus.errors import UserError
from ludus.kernels.library import AttentionRule

ATTENTION_NAME = "ludus"
_WITHOUT_EFFECT = frozenset(
    {"position_ids", "use_cache", "cache_position", "output_attentions", "output_router_logits", "is_causal"}
)
"""What layers hand on to their attention, and no attention of a causal decoder reads."""


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
    dropout: float = 0.0,
    plan: AttentionPlan | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every layer: hands the layer's queries, keys and values to the plan.

    s_aux: the layer's sinks, as of `AttentionRule`.
    Raises UserError for what a layer asks of its attention and the plan would not do.
    """
    name = type(module).__name__
    if plan is None:
        raise UserError(f"{name} does not hand on what a forward pass is given, such as Ludus's plan of it")
    if attention_mask is not None:
        raise UserError(f"{name} makes attention masks of its own, which Ludus does not serve")
    unknown = [each for each, value in others.items() if each not in _WITHOUT_EFFECT and value is not None]
    if dropout:
        unknown.append("dropout")
    if sliding_window is not None and sliding_window < 1:
        unknown.append(f"a sliding window of {sliding_window} tokens")
    if unknown:
        raise UserError(f"{name} asks its attention for {', '.join(unknown)}, which Ludus does not serve")
    layer_idx = module.layer_idx
    assert isinstance(layer_idx, int), f"layer_idx of {name} must be int but is {layer_idx!r}"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = AttentionRule(scale, sliding_window, softcap, None if s_aux is None else s_aux.float())
    width, value_width = query.shape[-1], value.shape[-1]
    if value_width < width:  # of latent attention: zeros make values as wide as keys
        value = functional.pad(value, (0, width - value_width))
    output = plan.attend(layer_idx, query, key, value, rule)
    return output[..., :value_width] if value_width < width else output, None


def weigh_scores(scores: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights of scores (…, H, Q, K), and the logs of their denominators (…, H, Q), of which a head's sink is a part.

    sinks: (H,), as of `AttentionRule`.
    """
    log_totals = torch.logsumexp(scores, -1)
    if sinks is not None:
        log_totals = torch.logaddexp(log_totals, sinks[:, None])
    return torch.exp(scores - log_totals[..., None]), log_totals


def register_attention() -> None:
    """Make our attention known to transformers under ATTENTION_NAME. Calling it again changes nothing."""
    AttentionInterface.register(ATTENTION_NAME, attend_by_plan)
