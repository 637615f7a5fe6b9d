"""Weights as saved files hold them: what a module keeps in one tensor may be many in the files of its family.

transformers stacks the experts of most mixtures when it loads them, and takes them apart again in `save_pretrained`.
Here the same is done tensor by tensor, so that no second copy of the weights is held, and back again.

Knows: transformers' conversions of weights.  Knows not: files, adapters.
Invariant: names and shapes are those of `save_pretrained`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion

Named = Iterable[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Tensors of the module that are converted together; most are alone."""

    own: tuple[str, ...]
    saved: tuple[str, ...]


class SavedForm:
    """How the weights of one module are called and cut in files."""

    def __init__(self, module: PreTrainedModel, named: Mapping[str, Tensor]) -> None:
        """named: the tensors in question, by their names in `module`; their shapes are looked at alone."""
        self._module = module
        self._groups: dict[str, _Group] = {}
        """By the own name of each tensor that files hold otherwise."""
        if not _conversions(module):
            return
        shapes = {name: without_values(each) for name, each in named.items()}
        whole = revert_weight_conversion(module, dict(shapes))
        together: dict[str, list[str]] = {}
        for name, shape in shapes.items():
            if not self._add([name], {name: shape}, whole):
                together.setdefault(_layer_of(name), []).append(name)
        for names in together.values():
            alike = self._add(names, {name: shapes[name] for name in names}, whole)
            assert alike, f"{', '.join(names)} are converted together with tensors of other layers"

    def _add(self, own: Sequence[str], shapes: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> bool:
        """Whether these tensors by themselves become what they become among all."""
        saved = revert_weight_conversion(self._module, dict(shapes))
        if any(name not in whole or whole[name].shape != each.shape for name, each in saved.items()):
            return False
        # stacks of matrices may be transposed under their own names
        if list(saved) != list(own) or any(each.ndim > 2 for each in shapes.values()):
            group = _Group(tuple(own), tuple(saved))
            self._groups |= dict.fromkeys(own, group)
        return True

    def saved(self, tensors: Named) -> Iterator[tuple[str, Tensor]]:
        """The tensors, given by their names in the module, as files hold them. Those that are one there wait for each
        other; else each comes before the next is asked for."""
        waiting: dict[str, Tensor] = {}
        for name, tensor in tensors:
            group = self._groups.get(name)
            if group is None:
                yield name, tensor
                continue
            waiting[name] = tensor
            if all(each in waiting for each in group.own):
                yield from revert_weight_conversion(
                    self._module, {each: waiting.pop(each) for each in group.own}
                ).items()

    def parts(self, name: str) -> tuple[str, ...]:
        """The tensors in files that hold the one called `name` in the module."""
        return (name,) if name not in self._groups else self._groups[name].saved

    def own(self, name: str, parts: Mapping[str, Tensor]) -> Tensor:
        """The tensor called `name` in the module, out of all its `parts`."""
        if name not in self._groups:
            return parts[name]
        own: Tensor = revert_weight_conversion(_Backwards(self._module), dict(parts))[name]
        return own


class _Backwards:
    """A module whose conversions are those of loading: what takes apart when a module is saved, puts together here."""

    def __init__(self, module: PreTrainedModel) -> None:
        self._module = module
        self._weight_conversions = [each.reverse_transform() for each in reversed(_conversions(module))]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _conversions(module: PreTrainedModel) -> Sequence[Any]:
    """Those that the module was loaded with; of one that was not, those of its family."""
    found = getattr(module, "_weight_conversions", None)
    if found is not None:
        return tuple(found)
    known = get_model_conversion_mapping(module, add_legacy=False)
    return tuple(each for each in known if not isinstance(each, PrefixChange))


def without_values(tensor: Tensor) -> Tensor:
    """One of that shape and type which takes no memory."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _layer_of(name: str) -> str:
    """The name up to the number of its layer."""
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""
