"""A model's shape in our words: transformers' configuration, read once.

Knows: which configurations Ludus can serve exactly.  Knows not: weights.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ludus.errors import ConfigError, UserError

logger = logging.getLogger(__name__)

# Layers whose whole state is the keys and values of the tokens before.
_SERVED_LAYERS = ("full_attention", "sliding_attention")
# Where configurations tell of quantised weights: transformers, earlier files of compressed tensors, MLX.
_QUANTISED = ("quantization_config", "compression_config", "quantization")
# How a model of several modalities begins the names of the parts that are not loaded.
_NOT_TEXT = ("vision", "audio", "visual", "speech")
# Frequencies that transformers changes for a whole call once one position in it lies past the original maximum.
_FREQUENCIES_BY_LENGTH = ("longrope",)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder of softmax attention layers."""

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Of keys, values and pages; what layers really bring decides, once a model is loaded."""
    vocab_size: int
    context_length: int
    logit_softcap: float | None
    """Logits l become softcap * tanh(l / softcap). None: they stay as they are."""
    logit_scale: float = 1.0
    """What logits are multiplied by, before the cap."""
    original_length: int | None = None
    """Positions that the model was trained on before its context was stretched. None: all."""

    @classmethod
    def from_hf(cls, hf: PretrainedConfig, *, context_length: int | None = None) -> ModelConfig:
        """`hf` in our words, of several modalities the text decoder; `context_length` narrows the model's own.

        Raises UserError for a model that Ludus cannot serve, naming the layer or the setting that stands against it.
        """
        architecture = architecture_of(hf)
        text = text_config(hf)
        values: dict[str, Any] = text.to_dict()
        _check_plain(hf.to_dict(), architecture)
        _check_served(text, values, architecture)
        num_heads, width = int(text.num_attention_heads), int(text.hidden_size)
        original_length = _original_length(values)
        return cls(
            architecture=architecture,
            num_layers=int(text.num_hidden_layers),
            num_heads=num_heads,
            num_kv_heads=int(values.get("num_key_value_heads") or num_heads),
            head_dim=int(values.get("head_dim") or width // num_heads),
            vocab_size=int(text.vocab_size),
            context_length=_context_length(text, values, architecture, context_length),
            logit_softcap=values.get("final_logit_softcapping"),
            logit_scale=float(values.get("logit_scale") or 1.0) / float(values.get("logits_scaling") or 1.0),
            original_length=original_length,
        )


def architecture_of(hf: PretrainedConfig) -> str:
    """The name of the class that the configuration was written by."""
    if hf.architectures:
        return str(hf.architectures[0])
    known = type(hf) in MODEL_FOR_CAUSAL_LM_MAPPING
    return str(MODEL_FOR_CAUSAL_LM_MAPPING[type(hf)].__name__ if known else hf.model_type)


def text_config(hf: PretrainedConfig) -> PretrainedConfig:
    """Of the text decoder alone, where `hf` is of a model that sees or hears too."""
    text: PretrainedConfig = hf.get_text_config(decoder=True)
    return text


def _context_length(text: PretrainedConfig, values: Mapping[str, Any], architecture: str, asked: int | None) -> int:
    longest, original = int(text.max_position_embeddings), _original_length(values)
    if asked is not None and asked > longest:
        raise ConfigError(f"model.context_length={asked} is too long: {architecture} allows at most {longest}")
    kinds = {rope.get("rope_type") for rope in _ropes(values)}
    if original is None or original >= longest or not kinds & {*_FREQUENCIES_BY_LENGTH}:
        return asked or longest
    if asked is not None and asked > original:
        raise ConfigError(
            f"model.context_length={asked} is too long: beyond {original} tokens {architecture} turns all tokens of a "
            f"sequence by other frequencies, those before too; set model.context_length to {original} or less"
        )
    if asked is None:
        logger.warning(
            "%s is served up to %d tokens of its %d: beyond them it turns all tokens of a sequence by other "
            "frequencies, which what was sampled before did not know",
            architecture,
            original,
            longest,
        )
    return asked or original


def _ropes(values: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parameters of rotary positions, of each kind of layer."""
    found = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if "rope_type" in found:
        yield found
    else:
        yield from (each for each in found.values() if isinstance(each, Mapping))


def _original_length(values: Mapping[str, Any]) -> int | None:
    name = "original_max_position_embeddings"
    found = [*(rope.get(name) for rope in _ropes(values)), values.get(name)]
    return next((int(each) for each in found if each is not None), None)


def quantised(architecture: str, how: str) -> UserError:
    """What is said of quantised weights."""
    return UserError(
        f"the weights of {architecture} are quantised ({how}), and Ludus samples and trains the same plain "
        "weights; take the model in bf16, or save it so (`from_pretrained(…).dequantize()`)"
    )


def _check_plain(values: Mapping[str, Any], architecture: str) -> None:
    """What is said of quantised weights stands in the text decoder's configuration, or in one around it."""
    for name in _QUANTISED:
        if found := values.get(name):
            how = found.get("quant_method", name) if isinstance(found, Mapping) else name
            raise quantised(architecture, str(how))
    for name, part in values.items():
        if isinstance(part, Mapping) and not name.startswith(_NOT_TEXT):
            _check_plain(part, architecture)


def _check_served(text: PretrainedConfig, values: Mapping[str, Any], architecture: str) -> None:
    layer_types = values.get("layer_types") or values.get("layers_block_type") or ()
    for layer_idx, layer_type in enumerate(layer_types):
        if layer_type not in (*_SERVED_LAYERS, "attention"):
            raise UserError(
                f"layer {layer_idx} of {architecture} is of type {layer_type!r}, which keeps another state than "
                f"keys and values; Ludus serves decoders whose layers are {' or '.join(_SERVED_LAYERS)}"
            )
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(f"{architecture} has no text decoder that transformers loads by itself ({text.model_type})")
    if MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]._is_stateful and not layer_types:  # none of those named keeps a state
        raise UserError(
            f"layers of {architecture} keep another state than keys and values, which cannot be shared or taken back "
            "token by token; Ludus serves decoders of softmax attention"
        )
    if not MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]._supports_attention_backend:
        raise UserError(
            f"{architecture} computes attention in code of its own, which transformers hands to nobody; Ludus serves "
            "models whose attention can be chosen (`attn_implementation`)"
        )
    floor = int(values.get("floor_scale") or 1) if values.get("attn_temperature_tuning") else None
    if floor is not None and floor < int(text.max_position_embeddings):
        raise UserError(
            f"{architecture} scales queries by their place in a row, not in their sequence (attn_temperature_tuning); "
            "Ludus packs sequences into rows and samples token by token, and cannot serve it"
        )
    if values.get("use_bidirectional_attention"):
        raise UserError(f"{architecture} attends in both directions; Ludus serves causal decoders")
    names = ("num_attention_heads", "num_hidden_layers", "hidden_size", "max_position_embeddings")
    missing = [name for name in names if not isinstance(getattr(text, name, None), int)]
    if missing:
        raise UserError(
            f"{architecture} is no decoder of softmax attention layers: its configuration has no {', '.join(missing)}"
        )
