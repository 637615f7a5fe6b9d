"""The sizes of a model that its memory depends on, read from its config.json without torch or transformers.

Knows: configurations of decoders, headers of safetensors.  Knows not: GPUs, settings, activations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

from ludus.errors import UserError

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# What these families do even where config.json does not say it: tie the embeddings; norm both before and after each
# block; norm queries and keys; give projections a bias.
_TIED_FAMILIES = ("gemma", "gemma2", "gemma3_text")
_SANDWICHED_FAMILIES = ("gemma2", "gemma3_text")
_NORMED_HEADS_FAMILIES = ("qwen3", "gemma3_text")
_BIASED_FAMILIES = ("qwen2",)
# A safetensors file begins with so many bytes that hold the length of its header.
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of softmax attention layers with a gated MLP each."""

    name: str
    num_layers: int
    width: int
    inner: int
    """Width of the gated MLP."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    is_tied: bool
    """Embedding and head are one matrix."""
    num_weights: int
    """Of the whole model, shared weights counted once."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Of the model in `folder`. Raises UserError for a mixture of experts, or if config.json lacks something."""
        try:
            values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            return cls.of(values, num_weights=_num_saved(folder))
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"the model in {folder} cannot be read: {error}; save it again") from None

    @classmethod
    def of(cls, values: Mapping[str, Any], *, num_weights: int | None = None) -> Self:
        """The shape that a config.json describes. num_weights: counted in the files. None: computed from the shape."""
        name = str((values.get("architectures") or [values.get("model_type", "the model")])[0])
        if any(values.get(key) for key in _EXPERTS):
            raise UserError(f"{name} is a mixture of experts, whose memory no plan knows yet")
        if values.get("kv_lora_rank"):
            raise UserError(f"{name} has latent attention, whose memory no plan knows yet")
        try:
            num_heads, width = int(values["num_attention_heads"]), int(values["hidden_size"])
            sizes: dict[str, int] = {
                "num_layers": int(values["num_hidden_layers"]),
                "width": width,
                "inner": int(values["intermediate_size"]),
                "num_heads": num_heads,
                "num_kv_heads": int(values.get("num_key_value_heads") or num_heads),
                "head_dim": int(values.get("head_dim") or width // num_heads),
                "vocab_size": int(values["vocab_size"]),
                "context_length": int(values["max_position_embeddings"]),
            }
        except (KeyError, TypeError) as missing:
            raise UserError(f"no plan can be made for {name}: its config.json has no {missing.args[0]}") from None
        family = str(values.get("model_type", ""))
        is_tied = bool(values.get("tie_word_embeddings", family in _TIED_FAMILIES))
        shape = cls(name, **sizes, is_tied=is_tied, num_weights=0)
        counted = num_weights or shape.outside_weights + shape.num_layers * shape._layer_weights(family, values)
        return cls(name, **sizes, is_tied=is_tied, num_weights=counted)

    @property
    def outside_weights(self) -> int:
        """Of embedding, head and last norm."""
        return self.vocab_size * self.width * (1 if self.is_tied else 2) + self.width

    @property
    def layer_weights(self) -> int:
        """Of one layer."""
        return (self.num_weights - self.outside_weights) // self.num_layers

    @property
    def linears(self) -> Mapping[str, tuple[int, int]]:
        """(inputs, outputs) of a layer's matrices, by the names that adapters use."""
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q_proj": (self.width, heads),
            "k_proj": (self.width, kv_heads),
            "v_proj": (self.width, kv_heads),
            "o_proj": (heads, self.width),
            "gate_proj": (self.width, self.inner),
            "up_proj": (self.width, self.inner),
            "down_proj": (self.inner, self.width),
        }

    def _layer_weights(self, family: str, values: Mapping[str, Any]) -> int:
        biased = {"q_proj", "k_proj", "v_proj"} if family in _BIASED_FAMILIES else set()
        biased |= {"q_proj", "k_proj", "v_proj", "o_proj"} if values.get("attention_bias") else set()
        biased |= {"gate_proj", "up_proj", "down_proj"} if values.get("mlp_bias") else set()
        norms = (4 if family in _SANDWICHED_FAMILIES else 2) * self.width
        norms += 2 * self.head_dim if family in _NORMED_HEADS_FAMILIES else 0
        return norms + sum(wide * high + (high if name in biased else 0) for name, (wide, high) in self.linears.items())


def _num_saved(folder: Path) -> int | None:
    """How many weights the files hold. None: there are no safetensors files."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > path.stat().st_size:
                raise UserError(f"{path} is no file of safetensors: it is shorter than its header; save it again")
            header = json.loads(file.read(length))
        total += sum(prod(each["shape"]) for name, each in header.items() if name != "__metadata__")
    return total or None
