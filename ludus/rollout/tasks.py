"""What is played next: rows in a reproducible order, as groups of episodes with ids and seeds.

Knows: rows, a seed.  Knows not: agents, engines, time.
Invariant: group number `ordinal` is the same row with the same ids and seeds in every run with the same seed and data.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.errors import UserError

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeTask:
    """One episode to play."""

    episode_id: str
    group_id: str
    task_id: str
    data: Row
    seed: int
    step: int | None
    """The training step that asked for it. None: no step did."""
    is_eval: bool = False


@dataclass(frozen=True, slots=True)
class GroupTask:
    """One row to be played by several episodes."""

    ordinal: int
    row_idx: int
    data: Row
    run_seed: int

    @property
    def group_id(self) -> str:
        return f"g{self.ordinal:06d}"

    @property
    def task_id(self) -> str:
        return f"row{self.row_idx}"

    def member(self, member_idx: int, attempt: int, step: int | None) -> EpisodeTask:
        """The task of one member; another attempt has another id and another seed."""
        return EpisodeTask(
            episode_id=f"{self.group_id}-m{member_idx:02d}" + (f"-r{attempt}" if attempt else ""),
            group_id=self.group_id,
            task_id=self.task_id,
            data=self.data,
            seed=derive_seed(self.run_seed, "train", self.ordinal, self.row_idx, member_idx, attempt),
            step=step,
        )


class GroupStream:
    """The endless stream of groups over the rows, epoch after epoch; it can be set back to where a run stopped."""

    def __init__(
        self, rows: Sequence[Row], *, seed: int, shuffle: bool, next_ordinal: int = 0, first: Iterable[int] = ()
    ) -> None:
        """next_ordinal, first: what `cursor` of an earlier stream gave, and the groups begun but never trained on."""
        if not rows:
            raise UserError("the training dataset has no rows")
        self._rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._again = sorted(first)
        self._epoch_orders: dict[int, list[int]] = {}
        self.next_ordinal = next_ordinal
        """The first group that was never dispatched."""

    def __iter__(self) -> Iterator[GroupTask]:
        return self

    def __next__(self) -> GroupTask:
        if self._again:
            return self.group(self._again.pop(0))
        self.next_ordinal += 1
        return self.group(self.next_ordinal - 1)

    @property
    def waiting_again(self) -> tuple[int, ...]:
        """Groups of an earlier run that were not dispatched again yet."""
        return tuple(self._again)

    def group(self, ordinal: int) -> GroupTask:
        epoch, position = divmod(ordinal, len(self._rows))
        row_idx = self._order(epoch)[position]
        return GroupTask(ordinal=ordinal, row_idx=row_idx, data=self._rows[row_idx], run_seed=self._seed)

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._epoch_orders:
            order = list(range(len(self._rows)))
            if self._shuffle:
                random.Random(derive_seed(self._seed, "order", epoch)).shuffle(order)
            self._epoch_orders = {epoch: order}
        return self._epoch_orders[epoch]


def derive_seed(*parts: object) -> int:
    """A seed of 63 bits that depends on every part and on nothing else."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
