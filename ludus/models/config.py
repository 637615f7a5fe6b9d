"""A model's shape in our words: transformers' configuration, read once.

Knows: which configurations Ludus can serve exactly.  Knows not: weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from ludus.errors import ConfigError, UserError

# Layers whose whole state is the keys and values of the tokens before.
_SERVED_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder of softmax attention layers."""

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    logit_softcap: float | None
    """Logits l become softcap * tanh(l / softcap). None: they stay as they are."""

    @classmethod
    def from_hf(cls, hf: PretrainedConfig, *, context_length: int | None = None) -> ModelConfig:
        """`hf` in our words; `context_length` narrows the model's own.

        Raises UserError for a model that Ludus cannot serve, naming the layer or the setting that stands against it.
        """
        values: dict[str, Any] = hf.to_dict()
        architecture = (values.get("architectures") or [values.get("model_type", "?")])[0]
        _check_served(hf, values, architecture)
        num_heads = int(values["num_attention_heads"])
        longest = int(values["max_position_embeddings"])
        if context_length is not None and context_length > longest:
            raise ConfigError(
                f"model.context_length={context_length} is too long: {architecture} allows at most {longest}"
            )
        return cls(
            architecture=architecture,
            num_layers=int(values["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(values.get("num_key_value_heads") or num_heads),
            head_dim=int(values.get("head_dim") or values["hidden_size"] // num_heads),
            vocab_size=int(values["vocab_size"]),
            context_length=context_length or longest,
            logit_softcap=values.get("final_logit_softcapping"),
        )


def _check_served(hf: PretrainedConfig, values: dict[str, Any], architecture: str) -> None:
    if hf.get_text_config() is not hf:
        raise UserError(f"{architecture} is a model of several modalities; Ludus serves text decoders alone")
    layer_types = values.get("layer_types") or values.get("layers_block_type") or ()
    for layer_idx, layer_type in enumerate(layer_types):
        if layer_type not in (*_SERVED_LAYERS, "attention"):
            raise UserError(
                f"layer {layer_idx} of {architecture} is of type {layer_type!r}, which keeps another state than "
                f"keys and values; Ludus serves decoders whose layers are {' or '.join(_SERVED_LAYERS)}"
            )
    if values.get("use_bidirectional_attention"):
        raise UserError(f"{architecture} attends in both directions; Ludus serves causal decoders")
    missing = [name for name in ("num_attention_heads", "num_hidden_layers", "hidden_size") if name not in values]
    if missing:
        raise UserError(
            f"{architecture} is no decoder of softmax attention layers: its configuration has no {', '.join(missing)}"
        )
