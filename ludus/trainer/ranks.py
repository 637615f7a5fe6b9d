"""What the step of one process needs of the others that train the same model.

Knows: rows of weights, numbers.  Knows not: how processes reach each other (`group.py`).
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Ranks(Protocol):
    """What a step needs of the others."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def rows(self, num_rows: int) -> slice:
        """Which rows this rank keeps of a parameter that has so many."""

    def local_rows(self, tensor: Tensor) -> Tensor:
        """This rank's rows of a parameter, or of its gradient; they share its memory."""

    def sum(self, value: float) -> float:
        """Of all ranks; every rank has to ask."""

    def concat(self, columns: Tensor) -> tuple[int, Tensor]:
        """The columns of all ranks side by side, by rank, and at which this rank's own begin; every rank has to ask."""

    def gather(self, value: Any) -> list[Any]:
        """What all ranks brought, by rank, at rank 0, and at the others what they brought themselves."""


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
    """Which of a parameter's rows a rank keeps: equal shares, of which the last ones may be shorter, or empty.

    As `torch.chunk` cuts, and so FSDP2.
    """
    share = -(-num_rows // num_ranks)
    return slice(min(rank * share, num_rows), min((rank + 1) * share, num_rows))
