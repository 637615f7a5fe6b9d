"""A trainer's state on disk: one file per rank, which any number of ranks can read back.

Knows: safetensors, pieces of weights.  Knows not: what the tensors are for, when to save.
Invariants: every rank writes the piece that it keeps, and reads the one that it will keep, whichever ranks wrote it;
all bits are preserved; nothing in a checkpoint is unpickled; tensors are written and read one by one, so that no second
copy of the state is in memory or on a card.

    trainer.json                          version, steps of the schedule, shapes, number of updates of each weight
    trainer-00001-of-00002.safetensors    the pieces of rank 0: masters/NAME  exp_avg/NAME  exp_avg_sq/NAME; and in
                                          the file's metadata for each NAME where it begins: its first row and column
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor

from ludus.engines.weights import write_safetensors
from ludus.errors import UserError
from ludus.models.pieces import Piece, overlap, rows_of, shape_of
from ludus.processes.files import sync
from ludus.trainer.ranks import Ranks
from ludus.trainer.rounding import Rounding

T = TypeVar("T")
STATE_FILE = "trainer.json"
_STARTS = "starts"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_state(folder: Path, version: int, state: Mapping[str, Any], ranks: Ranks) -> None:
    """Write this rank's part of an optimizer's state (`MasterOptimizer.state`). Synced to disk.

    Raises OSError if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    moments, copies = state["moments"], state["copies"]
    # masters first: behind an odd number of bf16 moments they would not be aligned
    tensors = {f"masters/{name}": each for name, each in state["masters"].items() if name not in copies}
    tensors |= {f"{kind}/{name}": own[kind] for name, own in moments.items() if name not in copies for kind in _MOMENTS}
    starts = {name: [each.start for each in piece] for name, piece in state["pieces"].items() if name not in copies}
    path = folder / _part(ranks.rank, ranks.size)
    written = ((name, each) for name, each in tensors.items() if each.numel())
    write_safetensors(path, written, {_STARTS: json.dumps(starts)})
    sync(path)
    if ranks.rank == 0:
        about = {
            "version": version,
            "num_batches": state["num_batches"],
            "loss_scale": state["loss_scale"],
            "ranks": ranks.size,
            "shapes": {name: list(shape) for name, shape in state["shapes"].items()},
            "moved": {name: float(own["step"]) for name, own in moments.items()},
        }
        (folder / STATE_FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        sync(folder / STATE_FILE)


@dataclass(frozen=True, slots=True)
class SavedParts(Mapping[str, T]):
    """Parts of a checkpoint by name, each read when asked for, so that the whole state is never in memory twice."""

    names: Sequence[str]
    read: Callable[[str], T]

    def __getitem__(self, name: str) -> T:
        if name not in self.names:
            raise KeyError(name)
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def read_state(folder: Path, pieces: Mapping[str, Piece] | None = None) -> tuple[int, dict[str, Any]]:
    """The version, and the pieces of the state that are asked for. Tensors are read to the CPU one by one, when they
    are taken: a GPU that holds master weights and moments has no room for a second copy.

    pieces: of each weight. None: all of them.
    Raises UserError if there is no checkpoint, or a part of it is missing.
    """
    if not (folder / STATE_FILE).is_file():
        raise UserError(f"no checkpoint in {folder}: {STATE_FILE} is missing")
    about = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    shapes, moved = about["shapes"], about["moved"]
    parts = check_parts(folder, about["ranks"])
    files: list[Any] = [safe_open(path, framework="pt") for path in parts]
    written = [_Written.of(file, rank, about["ranks"]) for rank, file in enumerate(files)]

    def read(key: str) -> Tensor:
        name = key.partition("/")[2]
        shape = shapes[name]
        own = (slice(0, shape[0]),) if pieces is None else pieces[name]
        return _joined(key, own, shape, written)

    def read_moments(name: str) -> dict[str, Tensor]:
        return {kind: read(f"{kind}/{name}") for kind in _MOMENTS} | {"step": torch.tensor(moved[name])}

    state = {
        "masters": SavedParts(list(shapes), lambda name: read(f"masters/{name}")),
        "moments": SavedParts(list(moved), read_moments),
        "num_batches": about["num_batches"],
        "loss_scale": about.get("loss_scale"),  # None: written by a version without loss scales
        "shapes": {name: tuple(shape) for name, shape in shapes.items()},
    }
    return about["version"], state


@torch.no_grad()
def take_masters(parameters: Mapping[str, Tensor], folder: Path, rounding: Rounding) -> None:
    """Write the master weights of a checkpoint into whole parameters, rounded exactly as they were to sample then.

    Raises UserError if there is no checkpoint, or if it is of another model.
    """
    _, state = read_state(folder)
    for name, parameter in parameters.items():
        got, here = state["shapes"].get(name), tuple(parameter.shape)
        if got != here:
            what = "is missing" if got is None else f"has shape {got}, but {here} here"
            raise UserError(f"the checkpoint in {folder} is of another model: {name} {what}")
        rounding.copy(state["masters"][name].to(parameter.device), parameter.data, name=name)


def check_parts(folder: Path, num_ranks: int) -> list[Path]:
    """The files of all ranks. Raises UserError if one is missing."""
    parts = [folder / _part(rank, num_ranks) for rank in range(num_ranks)]
    missing = [path.name for path in parts if not path.is_file()]
    if missing:
        raise UserError(
            f"the checkpoint in {folder} is not whole: {missing[0]} is missing. Ranks on several machines save into "
            "one folder that all of them see: set run_root to such a folder"
        )
    return parts


@dataclass(frozen=True, slots=True)
class _Written:
    """What one rank wrote."""

    file: Any
    keys: frozenset[str]
    starts: Mapping[str, Sequence[int]]
    """By name of the weight where its piece begins. Earlier versions wrote none: each rank has rows, in order."""
    rank: int
    num_ranks: int

    @classmethod
    def of(cls, file: Any, rank: int, num_ranks: int) -> _Written:
        starts = json.loads((file.metadata() or {}).get(_STARTS, "{}"))
        return cls(file, frozenset(file.keys()), starts, rank, num_ranks)

    def piece(self, key: str, shape: Sequence[int]) -> Piece:
        starts = self.starts.get(key.partition("/")[2])
        if starts is None:
            return (rows_of(shape[0], self.rank, self.num_ranks),)
        sizes = self.file.get_slice(key).get_shape()
        return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=False))


def _joined(key: str, own: Piece, shape: Sequence[int], written: Sequence[_Written]) -> Tensor:
    """A piece of a tensor of `shape`, put together from what all ranks wrote of it."""
    whole: Tensor | None = None
    for each in written:
        if key not in each.keys:
            continue
        stored = each.file.get_slice(key)
        both = overlap(own, each.piece(key, shape), shape)
        found: Tensor = stored[slice(0, 0)] if both is None else stored[both[1]]
        if found.shape == shape_of(own, shape):
            return found
        if whole is None:
            whole = found.new_empty(shape_of(own, shape))
        if both is not None:
            whole[both[0]] = found
    assert whole is not None, f"{key} was written by no rank"
    return whole


def _part(rank: int, num_ranks: int) -> str:
    return f"trainer-{rank + 1:05d}-of-{num_ranks:05d}.safetensors"
