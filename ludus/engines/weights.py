"""Versions of weights as safetensors files in one folder, for engines in other processes that read them there.

Knows: the safetensors format, the files of a LoRA adapter, folders.  Knows not: who reads them, or who is notified.
Invariants: a file that has its name is whole; a version is written once, however many engines ask for it; tensors are
written one by one, so that no second copy of the weights is ever held. The newest version alone stays; of adapters,
which are small, the one before too.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.engines.base import WeightSource
from ludus.processes.files import lock

if TYPE_CHECKING:
    from ludus.models.load import LoadedModel

SHARED_MEMORY = Path("/dev/shm")
HEADER_BYTES = 2**20
"""Room for the header, which tells where each tensor lies and is known last; enough for some ten thousand tensors."""
# A version is whole before the one before it goes; of adapters one more stays.
WHOLE_MODELS_AT_ONCE, ADAPTERS_AT_ONCE = 2, 3
_PREFIX = "ludus-weights-"
_YOUNG_S = 60.0  # a folder that is no older may not be locked yet by who has made it
_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "int32": "I32", "bool": "BOOL"}


@dataclass(frozen=True)
class LoadedWeights:
    """The weights of a model as they are, for an engine that has them not yet."""

    model: LoadedModel

    def named_tensors(self) -> Iterable[tuple[str, Any]]:
        return self.model.saved(self.model.trainable.items())

    def copy_into_shared(self) -> None:
        """They are those already."""


class WeightFiles:
    """The versions in one folder, which it makes and removes. Safe to use from several threads at once."""

    def __init__(self, folder: Path, *, adapter_config: Mapping[str, Any] | None = None) -> None:
        """adapter_config: what peft writes beside an adapter's weights. None: all weights are trained."""
        self.folder = folder
        self.adapter_config = adapter_config
        self._lock = threading.Lock()
        self._newest: tuple[int, Path] | None = None
        self._before: Path | None = None
        """An adapter's version before: engines that have not been given the newest yet may still read it there."""
        folder.mkdir(parents=True, exist_ok=True)
        self._held: int | None = None

    @classmethod
    def in_shared_memory(cls, *, adapter_config: Mapping[str, Any] | None = None) -> WeightFiles:
        """A folder of its own that lies in memory where the system has such folders."""
        parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
        _remove_abandoned(parent)
        files = cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)), adapter_config=adapter_config)
        files._held = os.open(files.folder, os.O_RDONLY)
        lock(files._held)
        return files

    def __repr__(self) -> str:
        return f"WeightFiles({str(self.folder)!r}, newest={None if self._newest is None else self._newest[0]})"

    def write(self, version: int, weights: WeightSource) -> Path:
        """The file with all weights of this version, or the folder of an adapter as peft lays it out."""
        with self._lock:
            if self._newest is None or self._newest[0] != version:
                before, path = self._newest, self._written(version, weights)
                self._newest = version, path
                if before is not None:
                    self._retire(before[1])
            return self._newest[1]

    def _retire(self, path: Path) -> None:
        """A whole model is read once, when it is published; an adapter also when its server forgets what it read."""
        gone: Path | None = path
        if self.adapter_config is not None:
            gone, self._before = self._before, path
        if gone is None:
            return
        if gone.is_dir():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder. Who has a file of it open can go on reading."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _written(self, version: int, weights: WeightSource) -> Path:
        if self.adapter_config is None:
            path = self.folder / f"v{version}.safetensors"
            write_safetensors(path, weights.named_tensors())
            return path
        path = self.folder / f"v{version}"
        path.mkdir(exist_ok=True)
        write_safetensors(path / "adapter_model.safetensors", weights.named_tensors())
        (path / "adapter_config.json").write_text(json.dumps(dict(self.adapter_config)))
        return path


def buckets(tensors: Iterable[tuple[str, Any]], most_bytes: int) -> Iterator[list[tuple[str, Any]]]:
    """The tensors in order, as many at once as stay below the bound, and at least one; of no tensors one empty list."""
    bucket: list[tuple[str, Any]] = []
    num_bytes = 0
    for name, tensor in tensors:
        if bucket and num_bytes + tensor.nbytes > most_bytes:
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append((name, tensor))
        num_bytes += tensor.nbytes
    yield bucket


def write_safetensors(
    path: Path, tensors: Iterable[tuple[str, Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file that appears under its name when it is whole."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.seek(HEADER_BYTES)
        for name, tensor in tensors:
            data = _bytes(tensor)
            begin, end = end, end + len(data)
            dtype = _DTYPES[str(tensor.dtype).removeprefix("torch.")]
            header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
            file.write(data)
    text = json.dumps(header).encode()
    room = -(-(len(text) + 8) // HEADER_BYTES) * HEADER_BYTES
    if room > HEADER_BYTES:
        _move_tensors(partial, room)
    with partial.open("r+b") as file:
        file.write((room - 8).to_bytes(8, "little"))
        file.write(text.ljust(room - 8))
    partial.replace(path)


def _move_tensors(path: Path, begin: int) -> None:
    """Make the tensors of a file begin there, behind a header that is larger than most."""
    wider = path.with_name(f"{path.name}.wider")
    with path.open("rb") as old, wider.open("wb") as new:
        old.seek(HEADER_BYTES)
        new.seek(begin)
        shutil.copyfileobj(old, new, HEADER_BYTES)
    wider.replace(path)


def _bytes(tensor: Any) -> memoryview:
    """What a tensor holds, in its own order; copied only if it lies elsewhere or has gaps."""
    import torch  # who has tensors has it

    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of processes that were killed: memory that nobody else would give back."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except OSError:  # another user's, or gone
            continue
        try:
            if time.time() - os.fstat(descriptor).st_mtime > _YOUNG_S and lock(descriptor):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
