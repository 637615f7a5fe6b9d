"""The interface between processes that train the same model: which piece of each weight they keep, and sums and gathers
over all.

Knows: pieces of weights, numbers.  Knows not: how processes reach each other (`group.py`).
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from ludus.models.pieces import Piece, whole_of


class Ranks(Protocol):
    """This process as one of several that train a model. Every rank must call the same methods in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def piece(self, parameter: Tensor) -> Piece:
        """What this rank keeps of a parameter."""

    def is_copy(self, parameter: Tensor) -> bool:
        """Whether an earlier rank keeps the same piece, and counts and writes it."""

    def local_piece(self, tensor: Tensor) -> Tensor:
        """This rank's piece of a parameter, or of its gradient; they share its memory."""

    def sum(self, value: float) -> float:
        """The sum over all ranks."""

    def concat(self, columns: Tensor) -> tuple[int, Tensor]:
        """The index at which this rank's columns begin, and the columns of all ranks side by side, in order."""

    def gather(self, value: Any) -> list[Any]:
        """At rank 0 the values of all ranks, in order; at other ranks their own value."""


class SingleRank:
    """One process that keeps everything."""

    rank = 0
    size = 1

    def piece(self, parameter: Tensor) -> Piece:
        return whole_of(parameter)

    def is_copy(self, parameter: Tensor) -> bool:
        return False

    def local_piece(self, tensor: Tensor) -> Tensor:
        return tensor.detach()

    def sum(self, value: float) -> float:
        return value

    def concat(self, columns: Tensor) -> tuple[int, Tensor]:
        return 0, columns

    def gather(self, value: Any) -> list[Any]:
        return [value]
