"""The interface between processes that train the same model: which rows each keeps, and sums and gathers over all.

Knows: rows of weights, numbers.  Knows not: how processes reach each other (`group.py`).
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Ranks(Protocol):
    """This process as one of several that train a model. Every rank must call the same methods in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def rows(self, num_rows: int) -> slice:
        """The rows that this rank keeps of a parameter with `num_rows`."""

    def local_rows(self, tensor: Tensor) -> Tensor:
        """This rank's rows of a parameter, or of its gradient; they share its memory."""

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

    def rows(self, num_rows: int) -> slice:
        return slice(0, num_rows)

    def local_rows(self, tensor: Tensor) -> Tensor:
        return tensor.detach()

    def sum(self, value: float) -> float:
        return value

    def concat(self, columns: Tensor) -> tuple[int, Tensor]:
        return 0, columns

    def gather(self, value: Any) -> list[Any]:
        return [value]


def rows_of(num_rows: int, rank: int, num_ranks: int) -> slice:
    """The rows of a parameter that a rank keeps: equal shares, of which the last ones may be shorter, or empty.

    As `torch.chunk`, and therefore FSDP2, cuts them.
    """
    share = -(-num_rows // num_ranks)
    return slice(min(rank * share, num_rows), min((rank + 1) * share, num_rows))
