"""One small forward pass at load, which proves that a model is what its configuration promises.

Configurations name their peculiarities in many words; what a layer really does is seen by running it. A layer that
does not hand plain keys and values to our attention is found here, and so is a head that we would compute otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ludus.errors import UserError
from ludus.kernels.library import AttentionRule
from ludus.models.attention import AttentionPlan
from ludus.models.config import ModelConfig

NUM_TOKENS = 4  # a few: enough for a causal pattern


class ProbePlan:
    """Plain causal attention that remembers what each layer brought."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[torch.Size, torch.Size, torch.Size]] = {}

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        self.shapes[layer_idx] = (q.shape, k.shape, v.shape)
        output = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=rule.scale, enable_gqa=True)
        return output.transpose(1, 2)


@torch.inference_mode()
def check_module(
    module: PreTrainedModel, config: ModelConfig, backbone: Callable[[Tensor, Tensor, AttentionPlan], Tensor]
) -> None:
    """Raises UserError, naming the layer, if `module` is no decoder that Ludus samples and trains exactly."""
    device = module.get_input_embeddings().weight.device
    ids = torch.arange(NUM_TOKENS, device=device)[None] % config.vocab_size
    positions = torch.arange(NUM_TOKENS, device=device)[None]
    plan = ProbePlan()
    hidden = backbone(ids, positions, plan)
    _check_layers(module, config, plan)
    expected = module(input_ids=ids, position_ids=positions, use_cache=False, plan=plan).logits.float()
    logits = functional.linear(hidden, module.get_output_embeddings().weight).float()
    if config.logit_softcap is not None:
        logits = config.logit_softcap * torch.tanh(logits / config.logit_softcap)
    # half a per cent of the range: far above bf16's rounding, far below any scale or bias that is left out
    tolerance = 5e-3 * float(expected.abs().max())
    if float((logits - expected).abs().max()) > tolerance:
        raise UserError(
            f"the head of {config.architecture} does more than multiply by its weight and cap the logits; "
            "Ludus does not serve it"
        )


def _check_layers(module: PreTrainedModel, config: ModelConfig, plan: ProbePlan) -> None:
    layers = dict(enumerate(module.base_model.layers)) if hasattr(module.base_model, "layers") else {}
    key_shape = (1, config.num_kv_heads, NUM_TOKENS, config.head_dim)
    for layer_idx in range(config.num_layers):
        name = f"layer {layer_idx} ({type(layers.get(layer_idx)).__name__}) of {config.architecture}"
        if layer_idx not in plan.shapes:
            raise UserError(f"{name} keeps another state than keys and values; Ludus serves softmax attention alone")
        query, key, value = plan.shapes[layer_idx]
        if query != (1, config.num_heads, NUM_TOKENS, config.head_dim) or key != key_shape or value != key_shape:
            raise UserError(
                f"{name} has queries, keys and values of shapes {tuple(query)}, {tuple(key)}, {tuple(value)}; "
                f"Ludus serves layers that all have keys and values of shape {key_shape}"
            )
