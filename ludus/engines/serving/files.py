"""Weights in files of safetensors, as a source of weights for the model that is served.

Knows: safetensors, the model's names for its tensors.  Knows not: where the files came from.
Invariant: what does not fit is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ludus.errors import UserError
from ludus.models.load import LoadedModel

NAMES_TOLD = 3  # of the names that do not fit, so many stand in an error


class FileWeights:
    """Trained weights of `model` in `files`; read tensor by tensor when they are copied."""

    def __init__(self, model: LoadedModel, files: Sequence[Path]) -> None:
        """Raises UserError if one of them is no trained weight of the model. What is not in them stays as it is."""
        self._files = files
        self._model = model
        expected = {name: tuple(each.shape) for name, each in model.saved_shapes.items()}
        with _opened(files) as opened:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for file in opened for name in file.keys()}  # noqa: SIM118
        unknown = sorted(shapes.keys() - expected.keys())
        if unknown:
            more = len(unknown) - NAMES_TOLD
            raise UserError(
                f"{', '.join(unknown[:NAMES_TOLD])}{f' and {more} more' if more > 0 else ''}: no such weights are "
                "trained here; serve the model that is trained, with the same model.lora if adapters are"
            )
        for name, shape in shapes.items():
            if shape != (here := expected[name]):
                raise UserError(f"{name} has the shape {shape}, and {here} in the model that is served")

    def named_tensors(self) -> Iterable[tuple[str, Tensor]]:
        with _opened(self._files) as opened:
            for file in opened:
                for name in file.keys():  # noqa: SIM118
                    yield name, file.get_tensor(name)

    def copy_into_shared(self) -> None:
        with torch.no_grad(), _opened(self._files) as opened:
            places = {name: file for file in opened for name in file.keys()}  # noqa: SIM118
            for name, parameter in self._model.trainable.items():
                parts = self._model.saved_parts(name)
                given = {part: places[part].get_tensor(part) for part in parts if part in places}
                if len(given) < len(parts) > 1 and given:  # the rest of it stays as it is
                    given = {**dict(self._model.saved([(name, parameter)])), **given}
                if given:
                    parameter.copy_(self._model.joined(name, given))


@contextmanager
def _opened(files: Sequence[Path]) -> Iterator[Sequence[Any]]:
    with ExitStack() as stack:
        try:
            yield [stack.enter_context(safe_open(path, framework="pt")) for path in files]
        except (SafetensorError, OSError) as error:
            raise UserError(f"the weights cannot be read as safetensors: {error}") from error
