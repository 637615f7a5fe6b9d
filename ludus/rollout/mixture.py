"""Mixes several sources of rows in one reproducible order: which source, and which of its rows, each group plays.

Knows: names, rows, weights, a seed.  Knows not: agents, what was played already.
Invariant: the source of group number `ordinal`, and how many groups of that source came before, depend only on the
weights and the seed.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ludus.errors import UserError

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset: one of several, or the only one."""

    rows: Sequence[Row]
    name: str = ""
    """'': it is the only one."""
    weight: float = 1.0
    """Its share of the groups, relative to the weights of the others."""

    def row_name(self, row_idx: int) -> str:
        """Name of the row that is unique among all sources."""
        return f"{self.name}-row{row_idx}" if self.name else f"row{row_idx}"


def row_named(sources: Sequence[Source], name: str) -> Row:
    """The row with that `Source.row_name`."""
    before, _, row_idx = name.rpartition("row")
    source = next(source for source in sources if source.name == before.removesuffix("-"))
    return source.rows[int(row_idx)]


class Mixture:
    """Interleaves sources in proportion to their weights.

    The k-th group of a source is due at (k + phase) / weight, and groups are played in the order in which they are due.
    This is the Sainte-Laguë method of allotting seats, except that phases are drawn from the seed instead of 1/2. After
    any number of groups, each source is off its exact share by at most as many groups as there are sources.
    """

    def __init__(self, sources: Sequence[Source], seed: int) -> None:
        empty = [source.name for source in sources if not len(source.rows)]
        if empty or not sources:
            of_name = f" {empty[0]!r} (train_dataset.mix.{empty[0]})" if any(empty) else ""
            raise UserError(f"the training dataset{of_name} has no rows")
        self._weights = [source.weight for source in sources]
        self._phases = [derive_seed(seed, "phase", source.name) / 2**63 for source in sources]
        self._counts = [0] * len(sources)
        self._sources, self._places = array("L"), array("L")
        """By ordinal: the source's index, and how many groups of that source came before."""

    def at(self, ordinal: int) -> tuple[int, int]:
        """Index of a group's source, and how many groups of that source come before it."""
        while len(self._sources) <= ordinal:
            due = [
                (count + phase) / weight
                for count, phase, weight in zip(self._counts, self._phases, self._weights, strict=True)
            ]
            first = due.index(min(due))
            self._sources.append(first)
            self._places.append(self._counts[first])
            self._counts[first] += 1
        return self._sources[ordinal], self._places[ordinal]


def derive_seed(*parts: object) -> int:
    """A 63-bit seed that depends on every part and on nothing else."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
