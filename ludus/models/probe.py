"""A few small forward passes at load, which prove that a model is what its configuration promises.

Configurations name their peculiarities in many words; what a layer really does is seen by running it. Proven are, on
two short sequences of which the second lies far behind in its context, past the length that the model was stretched
from:

- every layer hands over queries, keys and values of one shape, and does with them what transformers' own `eager` does,
  also where scores are large
- every layer's window is that of transformers' own mask for it, however long
- the head multiplies, scales and caps, and nothing else, whatever the size of logits
- two sequences packed into one row do not know of each other, and the first has the logits of `eager` alone
- a sequence in two parts, the second over the kept keys and values of the first, is the sequence as a whole
- nothing is NaN or infinite
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from ludus.algorithms.exact import exact
from ludus.errors import UserError
from ludus.kernels.library import AttentionRule
from ludus.models.attention import AttentionPlan, attend_by_plan, weigh_scores
from ludus.models.config import ModelConfig
from ludus.models.masks import MaskRule, is_window, watched_masks

Backbone = Callable[[Tensor, Tensor, AttentionPlan], Tensor]

# Of the two sequences: a few tokens are enough for a causal pattern.
_FIRST, _SECOND, _KEPT = 5, 7, 4
_PROBE_NAME = "ludus-probe"
# Of the norm of what is expected. fp32: sums in another order. bf16 and fp16: roundings of many layers, and tokens that
# another expert takes for them.
_FINE, _COARSE = 1e-3, 0.3
# Queries that many times as large show caps of scores that are far above them.
_LOUD = 16.0
# What the head is given for the tokens of the second sequence: nothing shows a bias, much shows caps. fp16 ends early.
_SCALES = (0.0, 2.0**-4, 1.0, 2.0**6, -(2.0**6), 2.0**12, 1.0)
_SCALES_FP16 = (0.0, 2.0**-4, 1.0, 2.0**4, -(2.0**4), 2.0**6, 1.0)


class ProbePlan:
    """Attention by its definition, over a mask; remembers what each layer brought, and keeps keys and values."""

    def __init__(self, seen_QK: Tensor, positions_K: Tensor) -> None:
        """seen_QK: which of the keys so far each query may see, before windows.  positions_K: of those keys."""
        self.seen_QK, self.positions_K = seen_QK, positions_K
        self.shapes: dict[int, tuple[torch.Size, torch.Size, torch.Size]] = {}
        self.rules: dict[int, AttentionRule] = {}
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        self.shapes[layer_idx], self.rules[layer_idx] = (q.shape, k.shape, v.shape), rule
        if layer_idx in self.kept:
            k, v = (torch.cat(pair, 2) for pair in zip(self.kept[layer_idx], (k, v), strict=True))
        self.kept[layer_idx] = k, v
        return attend_by_definition(q, k, v, self.mask(rule.window), rule).transpose(1, 2).contiguous()

    def mask(self, window: int | None) -> Tensor:
        """True where a query sees a key."""
        if window is None:
            return self.seen_QK
        own_Q = self.positions_K[-len(self.seen_QK) :, None]
        return self.seen_QK & (own_Q - self.positions_K < window)

    def extended(self, num_tokens: int) -> ProbePlan:
        """For the next tokens of the one sequence that this plan has kept."""
        num_kept = len(self.positions_K)
        at = torch.arange(num_kept + num_tokens, device=self.positions_K.device)
        plan = ProbePlan(at <= at[num_kept:, None], self.positions_K[0] + at)
        plan.kept = dict(self.kept)
        return plan


def attend_by_definition(q: Tensor, k: Tensor, v: Tensor, seen_QK: Tensor, rule: AttentionRule) -> Tensor:
    """softmax(scores) @ v in fp32, shape (B, H, Q, D). q: (B, H, Q, D); k and v: (B, Hk, K, D)."""
    num_groups = q.shape[1] // k.shape[1]
    k, v = (each.float().repeat_interleave(num_groups, 1) for each in (k, v))
    scores = q.float() @ k.transpose(2, 3) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~seen_QK, -torch.inf)
    return (weigh_scores(scores, rule.sinks)[0] @ v).to(q.dtype)


@torch.inference_mode()
def check_module(module: PreTrainedModel, config: ModelConfig, backbone: Backbone) -> ModelConfig:
    """The configuration with the shape of keys and values that the layers really have.

    Raises UserError, naming the layer, if `module` is no decoder that Ludus samples and trains exactly.
    """
    device = module.get_input_embeddings().weight.device
    ids = torch.arange(3, 3 + _FIRST + _SECOND, device=device)[None] * 7 % config.vocab_size
    first = torch.arange(_FIRST, device=device)
    second = _begin_of_second(config) + torch.arange(_SECOND, device=device)
    positions = torch.cat([first, second])
    at, row = torch.arange(len(positions), device=device), (torch.arange(len(positions), device=device) < _FIRST)
    plan = ProbePlan((at <= at[:, None]) & (row == row[:, None]), positions)
    hidden, logits, scales_T, errors = _run_packed(module, ids, positions[None], plan)
    config = _check_layers(module, config, plan)
    if not bool(hidden.isfinite().all()):
        raise UserError(
            f"a forward pass of {config.architecture} in {hidden.dtype} gives NaN or infinite numbers; its weights are "
            "damaged, or need another model.dtype"
        )
    _check_attention(module, config, errors)
    _check_head(module, config, hidden * scales_T[:, None], logits)
    with watched_masks(module) as masks:
        own = _own_logits(module, ids[:, :_FIRST])
    _check_masks(module, config, plan, masks)
    tolerance = _FINE if hidden.dtype == torch.float32 else _COARSE
    if _error(logits[:, :_FIRST], own) > tolerance:
        raise UserError(
            f"{config.architecture} does not give a sequence in a packed row what transformers' eager attention gives "
            "it alone: its layers keep another state than keys and values, or make masks of their own"
        )
    begun = ProbePlan(torch.ones(_KEPT, _KEPT, dtype=torch.bool, device=device).tril(), second[:_KEPT])
    own_ids = ids[:, _FIRST:]
    parts = [
        backbone(own_ids[:, :_KEPT], second[None, :_KEPT], begun),
        backbone(own_ids[:, _KEPT:], second[None, _KEPT:], begun.extended(_SECOND - _KEPT)),
    ]
    if _error(torch.cat(parts, 1), hidden[:, _FIRST:] * config.logit_scale) > tolerance:
        raise UserError(
            f"{config.architecture} does not go on from kept keys and values as if it had seen the whole sequence at "
            "once; Ludus samples token by token and cannot serve it"
        )
    return config


def _begin_of_second(config: ModelConfig) -> int:
    """Past the length that the model was trained on first if there is room, else at the end of the context."""
    room = max(0, config.context_length - _SECOND)
    return room if config.original_length is None else min(room, config.original_length)


def _run_packed(
    module: PreTrainedModel, ids: Tensor, positions: Tensor, plan: ProbePlan
) -> tuple[Tensor, Tensor, Tensor, dict[int, float]]:
    """Hidden states, logits of hidden states times scales, these scales (T,), and how far each layer's attention is
    from transformers' own."""
    errors: dict[int, float] = {}
    hidden: list[Tensor] = []
    scales: list[Tensor] = []

    def attend(part: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Any:
        output, nothing = attend_by_plan(part, q, k, v, attention_mask, **more)
        eager = getattr(sys.modules[type(part).__module__], "eager_attention_forward", None)
        if eager is not None:
            errors[part.layer_idx] = max(
                _error_of_layer(part, eager, (q * loud, k, v), plan, more) for loud in (1.0, _LOUD)
            )
        return output, nothing

    def scale(*call: Any) -> Any:
        output = call[-1]
        hidden.append(output.last_hidden_state)
        second = _SCALES_FP16 if hidden[0].dtype == torch.float16 else _SCALES
        scales.append(hidden[0].new_tensor((*(1.0,) * _FIRST, *second)))
        output.last_hidden_state = hidden[0] * scales[0][:, None]
        return output

    AttentionInterface.register(_PROBE_NAME, attend)
    decoder = getattr(module.base_model, "decoder", module.base_model)  # OPT's head goes round what is around it
    watched = decoder.register_forward_hook(scale)
    try:
        with _attention(module, _PROBE_NAME):
            logits = module(input_ids=ids, position_ids=positions, use_cache=False, plan=plan).logits
    finally:
        watched.remove()
        AttentionInterface._global_mapping.pop(_PROBE_NAME, None)
    if not hidden:
        raise UserError(
            f"the head of {type(module).__name__} does not multiply what its {module.base_model_prefix} gives"
        )
    return hidden[0], logits, scales[0], errors


def _error_of_layer(
    part: Any, eager: Callable[..., Any], heads: tuple[Tensor, ...], plan: ProbePlan, more: dict[str, Any]
) -> float:
    """How far a layer's attention by our rule is from transformers' own, both in fp32."""
    q, k, v = (each.float() for each in heads)
    rule = plan.rules[part.layer_idx]
    seen = plan.mask(rule.window)
    added = torch.zeros(seen.shape, device=q.device).masked_fill_(~seen, torch.finfo(q.dtype).min)
    own = eager(part, q, k, v, added[None, None], **{name: each for name, each in more.items() if name != "plan"})[0]
    got = attend_by_definition(q, k, v, seen, rule).transpose(1, 2)
    return _error(got, own.reshape(got.shape))


def _own_logits(module: PreTrainedModel, ids: Tensor) -> Tensor:
    """By transformers' eager attention, masks and all."""
    with _attention(module, "eager"):
        logits: Tensor = module(input_ids=ids, use_cache=False).logits
    return logits


@contextmanager
def _attention(module: PreTrainedModel, name: str) -> Iterator[None]:
    config = module.config
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def _error(got: Tensor, expected: Tensor) -> float:
    """Norm of the difference, by the norm of what is expected; NaN counts as infinitely far."""
    wanted = exact(expected)
    error = float((exact(got) - wanted).norm() / wanted.norm().clamp_min(1e-30))
    return error if error == error else float("inf")


def _check_layers(module: PreTrainedModel, config: ModelConfig, plan: ProbePlan) -> ModelConfig:
    num_tokens = len(plan.positions_K)
    expected = next(iter(plan.shapes.values()), None)
    layer_types = getattr(module.config.get_text_config(decoder=True), "layer_types", None) or ()
    for layer_idx in range(config.num_layers):
        name = _layer_name(module, config, layer_idx)
        if layer_idx not in plan.shapes or expected is None:
            raise UserError(f"{name} keeps another state than keys and values; Ludus serves softmax attention alone")
        query, key, value = plan.shapes[layer_idx]
        is_even = query[0] == 1 and query[2] == num_tokens and query[3] == key[3] and query[1] % key[1] == 0
        if not is_even or key != value or plan.shapes[layer_idx] != expected:
            raise UserError(
                f"{name} has queries, keys and values of shapes {tuple(query)}, {tuple(key)}, {tuple(value)}; Ludus "
                f"serves layers that all have keys and values of one shape, and layer 0 has {tuple(expected[1])}"
            )
        is_sliding = layer_idx < len(layer_types) and layer_types[layer_idx] == "sliding_attention"
        if is_sliding and plan.rules[layer_idx].window is None:
            raise UserError(f"{name} has a sliding window, which it does not hand to its attention")
    assert expected is not None, "there is a layer"
    query, key, _ = expected
    return replace(config, num_heads=query[1], num_kv_heads=key[1], head_dim=key[3])


def _layer_name(module: PreTrainedModel, config: ModelConfig, layer_idx: int) -> str:
    layers = dict(enumerate(module.base_model.layers)) if hasattr(module.base_model, "layers") else {}
    kind = f" ({type(layers[layer_idx]).__name__})" if layer_idx in layers else ""
    return f"layer {layer_idx}{kind} of {config.architecture}"


def _check_attention(module: PreTrainedModel, config: ModelConfig, errors: dict[int, float]) -> None:
    for layer_idx, error in errors.items():
        if error > _FINE:
            raise UserError(
                f"{_layer_name(module, config, layer_idx)} attends otherwise than by softmax over scaled, capped and "
                f"masked scores: it is {error:.1%} from transformers' eager attention"
            )


def _check_masks(module: PreTrainedModel, config: ModelConfig, plan: ProbePlan, masks: Mapping[int, MaskRule]) -> None:
    for layer_idx, rule in masks.items():
        window = plan.rules[layer_idx].window
        if not is_window(rule, window, length=config.context_length):
            what = "all keys before a query" if window is None else f"a window of {window} tokens"
            raise UserError(
                f"{_layer_name(module, config, layer_idx)} tells its attention of {what}, and transformers' mask for "
                "it shows others; Ludus serves causal attention whose windows are handed to it"
            )


def _check_head(module: PreTrainedModel, config: ModelConfig, hidden: Tensor, expected: Tensor) -> None:
    head = module.get_output_embeddings()
    logits = functional.linear(hidden * config.logit_scale, head.weight).float()
    if config.logit_softcap is not None:
        logits = config.logit_softcap * torch.tanh(logits / config.logit_softcap)
    # of a token's range: above the two or three roundings of bf16, far below any scale, bias or cap that is left out
    tolerance = (1e-3 if hidden.dtype == torch.float32 else 1e-2) * expected.float().abs().amax(-1, keepdim=True)
    if not bool(((logits - expected.float()).abs() <= tolerance).all()):
        what = "adds a bias" if getattr(head, "bias", None) is not None else "does more than multiply, scale and cap"
        raise UserError(f"the head of {config.architecture} {what}; Ludus does not serve it")
