"""What can be refused before any weight is fetched or read: a configuration, and the decoder that it describes.

Knows: transformers' configurations, modules without memory (torch's meta device), names and types of tensors.
Knows not: weights, hubs.
What only a forward pass with numbers can tell is proven once the weights are there (`probe.py`).
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ludus.errors import LudusError, UserError
from ludus.kernels.library import AttentionRule
from ludus.models.attention import ATTENTION_NAME, register_attention
from ludus.models.config import ModelConfig, quantised, text_config

_INDEX = "model.safetensors.index.json"
# What the tensors beside quantised weights are called, whatever the configuration says of them.
_QUANTISED_NAMES = (
    *("qweight", "qzeros", "g_idx", "SCB", "absmax", "quant_map", "weight_packed", "weight_scale", "weight_scale_inv"),
    *("weight_zero_point", "weight_global_scale", "input_scale", "activation_scale"),
)


def read_config(folder: Path) -> Any:
    """transformers' configuration of the model in `folder`. Raises UserError if it knows none."""
    try:
        # code that lies beside a model is never run, and nobody is asked whether it may
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"transformers does not know the model in {folder}: {error}") from error
    except RecursionError:
        raise UserError(f"{folder / 'config.json'} is nested too deep to be a model's") from None


@cache
def check_folder(folder: Path) -> None:
    """Refuse a model that cannot be served by what its folder holds beside weights; once in a process."""
    described = read_config(folder)
    config = ModelConfig.from_hf(described)
    check_outline(folder, described, config)


def check_outline(folder: Path, described: PretrainedConfig, config: ModelConfig) -> None:
    """Refuse what the index of weights and the layers of the decoder tell, without their weights.

    Raises UserError, naming the layer or the tensor that stands against the model.
    """
    index = folder / _INDEX
    for name in _names_of(index) if index.is_file() else ():
        _check_name(name, config.architecture)
    module = _without_weights(text_config(described))
    if module is not None:
        _check_head(module, config)
        _check_keys(module, config)
        _check_attention(module)


def check_headers(folder: Path, config: ModelConfig) -> None:
    """Refuse quantised weights of which no configuration told, by the headers of their files.

    transformers would take their numbers for those of plain weights. Raises UserError, naming a tensor.
    """
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                types = {name: str(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
        except SafetensorError:
            return  # whoever reads it says what is wrong with it
        for name, kind in types.items():
            _check_name(name, config.architecture)
            if kind.startswith("F8") or (kind[0] in "IU" and name.endswith(".weight")):
                raise quantised(config.architecture, f"{name} is of type {kind}")


def _check_name(name: str, architecture: str) -> None:
    if name.rpartition(".")[2] in _QUANTISED_NAMES:
        raise quantised(architecture, f"there is a {name}")


def _names_of(index: Path) -> list[str]:
    try:
        return list(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{index} does not say which file holds which weight: {error!r}; fetch it again") from None


def _without_weights(text: PretrainedConfig) -> nn.Module | None:
    """The decoder, whose tensors have shapes alone. None: it cannot be made so, and will be looked at when loaded."""
    try:
        with torch.device("meta"):
            module: nn.Module = MODEL_FOR_CAUSAL_LM_MAPPING[type(text)]._from_config(copy.deepcopy(text))
    except LudusError:
        raise
    except Exception:  # others' code, not all of which can do without numbers
        return None
    return module


class _ShapePlan:
    """Attention of which the shape alone is asked."""

    def attend(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


def _check_attention(module: Any) -> None:
    """Refuse what layers ask of their attention that no plan does, as far as a pass without numbers comes."""
    register_attention()
    module.config._attn_implementation = ATTENTION_NAME
    at = torch.zeros((1, 2), dtype=torch.long, device="meta")
    try:
        module.eval()(input_ids=at, position_ids=at, use_cache=False, plan=_ShapePlan())
    except LudusError:
        raise
    except Exception:  # others' code again; `probe.py` runs it with numbers
        return


def _check_head(module: Any, config: ModelConfig) -> None:
    head = module.get_output_embeddings()
    if getattr(head, "bias", None) is not None:
        raise UserError(f"the head of {config.architecture} adds a bias; Ludus does not serve it")


def _check_keys(module: nn.Module, config: ModelConfig) -> None:
    """Keys of all layers must have one shape; a layer without projection of its own is another layer's concern."""
    widths: dict[int, tuple[int, object]] = {}
    for part in module.modules():
        layer_idx, project = getattr(part, "layer_idx", None), getattr(part, "k_proj", None)
        if isinstance(layer_idx, int) and isinstance(project, nn.Linear):
            widths[layer_idx] = project.out_features, getattr(part, "head_dim", None)
    for layer_idx, found in sorted(widths.items()):
        first = widths[min(widths)]
        if found != first:
            raise UserError(
                f"layer {layer_idx} of {config.architecture} has keys of {found[0]} numbers in heads of {found[1]}; "
                "Ludus serves layers that all have keys and values of one shape, and layer "
                f"{min(widths)} has {first[0]} in heads of {first[1]}"
            )
