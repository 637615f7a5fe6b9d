"""Which piece of a tensor a process keeps: some of its rows, and of these all columns or some.

Knows: shapes.  Knows not: processes, torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Piece = tuple[slice, ...]
"""By dimension, from the first on; of those that are left out all is kept."""


class Shaped(Protocol):
    """A tensor, whatever it holds."""

    @property
    def shape(self) -> Sequence[int]: ...


def whole_of(tensor: Shaped) -> Piece:
    return (slice(0, tensor.shape[0]),)


def rows_of(num_rows: int, rank: int, num_ranks: int) -> slice:
    """The rows of a tensor that a rank keeps: equal shares, of which the last ones may be shorter, or empty.

    As `torch.chunk`, and therefore FSDP2, cuts them.
    """
    share = -(-num_rows // num_ranks)
    return slice(min(rank * share, num_rows), min((rank + 1) * share, num_rows))


def shape_of(piece: Piece, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a piece of a tensor of `shape`."""
    return (*(each.stop - each.start for each in piece), *shape[len(piece) :])


def overlap(own: Piece, other: Piece, shape: Sequence[int]) -> tuple[Piece, Piece] | None:
    """Where both pieces of a tensor of `shape` overlap, counted from the beginning of each. None: nowhere."""
    in_own, in_other = [], []
    for dim in range(max(len(own), len(other))):
        left, right = (each[dim] if dim < len(each) else slice(0, shape[dim]) for each in (own, other))
        start, stop = max(left.start, right.start), min(left.stop, right.stop)
        if start >= stop:
            return None
        in_own.append(slice(start - left.start, stop - left.start))
        in_other.append(slice(start - right.start, stop - right.start))
    return tuple(in_own), tuple(in_other)
