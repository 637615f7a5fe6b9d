"""What a training step's loss used of every trained token: `tokens/step-000001.bin` in the run's folder.

Knows: files, columns of numbers, checksums.  Knows not: losses, how a number was computed.
Invariants: a damaged file is refused by name; the sum of the column `loss`, divided by the number of minibatches, is
the step's loss. What the engine recorded of a token (id, logprob, version) is only in `run.db`.

    CRC-32 of what follows (4 bytes, little-endian) · format (1 byte) · MessagePack of `_Stored`, whose columns are
    float32, little-endian, deflated
"""

from __future__ import annotations

import re
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import msgspec

from ludus.errors import InternalError, UserError
from ludus.processes.files import OWNER_ALONE, write_whole

FOLDER = "tokens"
_FORMAT = 1
_NAME = re.compile(r"step-(\d{6,})\.bin")
_LEVEL = 1  # advantages and weights hardly change from token to token, and deflate to nothing; logprobs never do
_NUMBER = 4  # bytes


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """Values of all trained tokens of one batch, turn by turn."""

    turns: Sequence[tuple[int, int]]
    """For each turn its number in the batch, and how many of its tokens were trained."""
    columns: Mapping[str, bytes]
    """By name: float32, little-endian, one per token."""
    num_minibatches: int = 1
    """Divisor for `loss` and `weight`, because each minibatch is weighted like a whole batch."""

    def __post_init__(self) -> None:
        length = sum(count for _, count in self.turns) * _NUMBER
        wrong = {name: len(data) for name, data in self.columns.items() if len(data) != length}
        if wrong:
            raise InternalError(f"columns of {length // _NUMBER} tokens have {length} bytes each, got {wrong}")


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The trained tokens of one step."""

    step: int
    turns: Sequence[tuple[str, int]]
    """For each turn its id, and how many of its tokens were trained."""
    columns: Mapping[str, Sequence[float]]
    """By name, one number per token, of the batch's last epoch: `trained_logprob` and `entropy` under the weights that
    its loss used, `ratio`, `clipped` (0 or 1), `advantage`, `weight` in the loss of the step, `loss` (its share of that
    loss), and whatever else the algorithm reports for tokens."""
    places: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By turn id: indices of the trained tokens among the turn's sampled tokens, ascending, unless they are the first
    ones."""
    _spans: Mapping[str, tuple[int, int]] = field(init=False, repr=False, compare=False)
    """By turn id: the start of its tokens in the columns, and their number."""

    def __post_init__(self) -> None:
        starts = accumulate((count for _, count in self.turns), initial=0)
        spans = {turn: (start, count) for (turn, count), start in zip(self.turns, starts, strict=False)}
        object.__setattr__(self, "_spans", spans)

    @property
    def loss(self) -> float:
        """The step's loss: the sum over its tokens."""
        return sum(self.columns["loss"])

    @property
    def num_trained(self) -> int:
        return sum(count for _, count in self.turns)

    def trains(self, turn_id: str) -> bool:
        """Whether any token of the turn was trained."""
        return self._spans.get(turn_id, (0, 0))[1] > 0

    def of_turn(self, turn_id: str, within: range | None = None) -> dict[int, dict[str, float]]:
        """The values of a turn's trained tokens, by index among its sampled tokens. {}: none was trained.

        within: only of tokens with these indices, at the cost of these alone. None: of all.
        """
        start, count = self._spans.get(turn_id, (0, 0))
        named, places = list(self.columns.items()), self.places.get(turn_id, range(count))
        first, end = 0, len(places)
        if within is not None:
            first, end = bisect_left(places, within.start), bisect_left(places, within.stop)
        return {places[n]: {name: column[start + n] for name, column in named} for n in range(first, end)}


class _Stored(msgspec.Struct, array_like=True):
    step: int
    num_minibatches: int
    turns: list[tuple[str, int]]
    places: dict[str, list[int]]
    columns: dict[str, bytes]


_decode = msgspec.msgpack.Decoder(_Stored).decode  # see ludus.runs.codec.Decoder


def write_tokens(folder: Path, step: int, tokens: TokenColumns, turns: Mapping[int, tuple[str, Sequence[int]]]) -> None:
    """Replace the step's file in the run's folder. Raises OSError if the disk fails.

    turns: by number in the batch: the turn's id, and the indices of its trained tokens among those sampled.
    """
    ids = [(turns[number][0], count) for number, count in tokens.turns]
    places = {turns[number][0]: list(turns[number][1]) for number, _ in tokens.turns}
    stored = _Stored(
        step,
        tokens.num_minibatches,
        ids,
        {turn: each for turn, each in places.items() if each != list(range(len(each)))},
        {name: zlib.compress(data, _LEVEL) for name, data in tokens.columns.items()},
    )
    content = bytes([_FORMAT]) + msgspec.msgpack.encode(stored)
    path = path_of(folder, step)
    path.parent.mkdir(mode=OWNER_ALONE, exist_ok=True)
    write_whole(path, zlib.crc32(content).to_bytes(4, "little") + content)


def read_tokens(folder: Path, step: int) -> StepTokens | None:
    """The step's tokens. None: it trained none, or they were not recorded.

    Raises UserError if the file is damaged.
    """
    path = path_of(folder, step)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{FOLDER}/{path.name} cannot be read: {error.strerror or error}") from error
    if len(content) < 5 or zlib.crc32(content[4:]) != int.from_bytes(content[:4], "little"):
        raise UserError(f"{FOLDER}/{path.name} is damaged: it does not hold what was written")
    if content[4] != _FORMAT:
        raise UserError(
            f"{FOLDER}/{path.name} was written by another version of Ludus: it has the format {content[4]}, this "
            f"version reads {_FORMAT}. Read it with the version that wrote it"
        )
    try:
        stored = _decode(content[5:])
        columns: dict[str, Sequence[float]] = {name: _numbers(data) for name, data in stored.columns.items()}
        for name in ("weight", "loss"):
            columns[name] = array("d", (each / stored.num_minibatches for each in columns[name]))
    except (msgspec.MsgspecError, RecursionError, zlib.error, ValueError, KeyError, ZeroDivisionError) as error:
        raise UserError(f"{FOLDER}/{path.name} holds what no step writes: {error}") from None
    return StepTokens(stored.step, stored.turns, columns, stored.places)


def recorded_steps(folder: Path) -> list[int]:
    """The steps that have a file, in order."""
    names = (_NAME.fullmatch(path.name) for path in (folder / FOLDER).glob("step-*.bin"))
    return sorted(int(name[1]) for name in names if name)


def missing_steps(folder: Path, trained: Collection[int]) -> list[int]:
    """Steps in `trained` that have no file although earlier and later ones have, in order.

    Before the first and after the last file, recording may have been off.
    """
    recorded = recorded_steps(folder)
    return sorted(step for step in {*trained} - {*recorded} if recorded and recorded[0] < step < recorded[-1])


def discard_tokens(folder: Path, *, after: int) -> None:
    """Remove the files of steps after `after`, which are trained again."""
    for step in recorded_steps(folder):
        if step > after:
            path_of(folder, step).unlink(missing_ok=True)


def path_of(folder: Path, step: int) -> Path:
    return folder / FOLDER / f"step-{step:06d}.bin"


def _numbers(data: bytes) -> array[float]:
    numbers = array("f", zlib.decompress(data))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
