"""Which weights of a model get adapters: those of its family, or those that the settings name.

Knows: transformers' modules, names.  Knows not: peft's layers, ranks.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ludus.errors import UserError
from ludus.models.settings import LoraSettings

logger = logging.getLogger(__name__)
# peft takes these names for those of experts that a mixture had before they were fused, also where other layers have
# them: adapters of shared experts would be saved as what nobody could load.
_NAMES_OF_EXPERTS = ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3")


@dataclass(frozen=True, slots=True)
class Targets:
    """As peft takes them."""

    modules: tuple[str, ...]
    parameters: tuple[str, ...]
    """Weights that belong to no linear layer, such as those of fused experts."""
    are_transposed: bool
    """Their matrices are stored input by output (GPT-2's)."""


def choose_targets(module: PreTrainedModel, lora: LoraSettings) -> Targets:
    """What `lora` names; where it names no modules, every linear layer within the decoder's layers but routers, and but
    those of MLPs beside fused experts.

    Names that match nothing, and experts that are left without adapters, are told in warnings.
    Raises UserError if nothing matches, or if an embedding or the head is named.
    """
    linear = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear | Conv1D)}
    embeddings = (module.get_input_embeddings(), module.get_output_embeddings())
    outside = [name for name, part in module.named_modules() if any(part is each for each in embeddings)]
    inside = {name: part for name, part in linear.items() if name not in outside}
    experts = _experts(module)
    known = sorted({_last(name) for name in inside if not _last(name).endswith("gate") and _last(name) != "router"})
    if experts:
        known = [name for name in known if name not in _NAMES_OF_EXPERTS]
    chosen = tuple(known) if lora.target_modules is None else lora.target_modules
    for target in (*chosen, *lora.target_parameters):
        if any(_matches(name, target) for name in outside):
            raise UserError(f"model.lora.target_modules names {target!r}; adapters on embeddings are not supported")
    modules = tuple(each for each in chosen if any(_matches(name, each) for name in inside))
    parameters = tuple(each for each in lora.target_parameters if any(_matches(name, each) for name in experts))
    nothing = [each for each in (*chosen, *lora.target_parameters) if each not in (*modules, *parameters)]
    if not modules and not parameters:
        raise UserError(
            f"model.lora: {', '.join(map(repr, nothing)) or 'nothing'} fits no layer of {type(module).__name__}; its "
            f"linear layers are {', '.join(known) or 'none'}, its experts {', '.join(_ends(experts)) or 'none'}; leave "
            "model.lora.target_modules out to take all linear layers"
        )
    for each in nothing:
        near = difflib.get_close_matches(each, (*known, *_ends(experts)), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        logger.warning("model.lora: %r fits no layer of %s and adapts nothing%s", each, type(module).__name__, hint)
    if experts and not parameters:
        logger.warning(
            "the experts of %s, fused weights of which no linear layer has a part, get no adapters; "
            "model.lora.target_parameters=[%s] gives them some",
            type(module).__name__,
            ", ".join(_ends(experts)),
        )
    transposed = {
        type(part) is Conv1D for name, part in inside.items() if any(_matches(name, each) for each in modules)
    }
    return Targets(modules, parameters, transposed == {True})


def _experts(module: PreTrainedModel) -> list[str]:
    """The names of weights of many matrices each."""
    return [name for name, parameter in module.named_parameters() if parameter.ndim == 3]


def _ends(names: list[str]) -> list[str]:
    """Each as it is called in every layer: `mlp.experts.down_proj`."""
    return sorted({".".join(name.split(".")[-3:]) for name in names})


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _matches(name: str, target: str) -> bool:
    """As peft compares."""
    return name == target or name.endswith(f".{target}")
