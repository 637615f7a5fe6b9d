"""Where the weights of a new version come in: as safetensors over HTTP, piece after piece, or as files that lie here.

Knows: the layout of safetensors, folders.  Knows not: tensors, models, who sends.
What is sent is written to files while the engine samples on, and is loaded between two steps when it has come whole:
weights that break off on their way change nothing, and no process holds a copy of all of them.

    body = safetensors, safetensors, …      each: 8 bytes of length, a header in JSON, the tensors' bytes
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import pydantic

from ludus.engines.base import Engine, WeightSource, check_version
from ludus.errors import UserError
from ludus.http.numbers import Count

LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000  # the format's own limit
LoadWeights = Callable[[Sequence[Path]], WeightSource]
"""The weights in safetensors files. Raises UserError if they are not those of the model that is served."""


class _About(pydantic.BaseModel):
    """One entry of a header; that of `__metadata__` has no offsets."""

    data_offsets: tuple[Count, Count] = (0, 0)


_HEADER = pydantic.TypeAdapter(dict[str, _About])


class WeightReceiver:
    """Takes the weights of one version after the other. Used from one event loop."""

    def __init__(self, engine: Engine, load: LoadWeights, *, scratch: Path | None = None) -> None:
        """scratch: where weights lie on their way in. None: the folder that the system has for such files."""
        self._engine = engine
        self._load = load
        self._scratch = scratch
        self._turn = asyncio.Lock()

    async def receive(self, version: int, body: AsyncIterator[bytes]) -> None:
        """Sample with the weights in `body` from now on. Raises UserError if they are not whole or not this model's."""
        async with self._turn:
            self._check(version)
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="ludus-weights-", dir=self._scratch))
            try:
                await self._publish(version, await _write(folder, body))
            finally:
                await asyncio.to_thread(shutil.rmtree, folder)

    async def read(self, version: int, path: Path) -> None:
        """The same of a file of safetensors, or of all of them in a folder; it may go when this returns."""
        async with self._turn:
            self._check(version)
            await self._publish(version, await asyncio.to_thread(_found, path))

    def _check(self, version: int) -> None:
        """The engine itself would refuse the version too, but only after all of its weights have come."""
        check_version(version, self._engine.stats().version)

    async def _publish(self, version: int, files: Sequence[Path]) -> None:
        await self._engine.publish(version, await asyncio.to_thread(self._load, files))


def _found(path: Path) -> Sequence[Path]:
    try:
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        is_there = bool(files) and files[0].is_file()
    except (OSError, ValueError):  # a name too long, or with a byte that no name has
        is_there = False
    if not is_there:
        raise UserError(f"{str(path)!r} is no file of safetensors here, nor a folder with some")
    return files


async def _write(folder: Path, body: AsyncIterator[bytes]) -> Sequence[Path]:
    """The files into which the safetensors of `body` were written."""
    files: list[Path] = []
    stream = _Stream(body)
    while not await stream.is_at_end():
        path = folder / f"{len(files):05d}.safetensors"
        with path.open("wb") as file:
            await _copy_one(stream, file)
        files.append(path)
    if not files:
        raise UserError("the body is empty; send the weights as safetensors")
    return files


async def _copy_one(stream: _Stream, file: BinaryIO) -> None:
    length = await stream.take(LENGTH_BYTES)
    num_header_bytes = int.from_bytes(length, "little")
    if num_header_bytes > MOST_HEADER_BYTES:
        raise UserError(f"the body is no safetensors: its header would have {num_header_bytes} bytes")
    header = await stream.take(num_header_bytes)
    file.write(length + header)
    left = _num_data_bytes(header)
    while left:
        chunk = await stream.take_some(left)
        left -= len(chunk)
        await asyncio.to_thread(file.write, chunk)


def _num_data_bytes(header: bytes) -> int:
    try:
        return max((about.data_offsets[1] for about in _HEADER.validate_json(header).values()), default=0)
    except pydantic.ValidationError as error:
        raise UserError(f"the body is no safetensors: {error.errors()[0]['msg']} in its header") from error


class _Stream:
    """Bytes that come in chunks of any size, taken in pieces of the reader's."""

    def __init__(self, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._held = b""

    async def is_at_end(self) -> bool:
        while not self._held:
            try:
                self._held = await anext(self._body)
            except StopAsyncIteration:
                return True
        return False

    async def take_some(self, most: int) -> bytes:
        """Between 1 and `most` bytes. Raises UserError at the end."""
        if await self.is_at_end():
            raise UserError("the weights ended in the middle of a tensor; send them again")
        taken, self._held = self._held[:most], self._held[most:]
        return taken

    async def take(self, num: int) -> bytes:
        taken = b""
        while len(taken) < num:
            taken += await self.take_some(num - len(taken))
        return taken
