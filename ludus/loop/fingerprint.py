"""A fingerprint of the training rows, so that a resumed run notices that they have changed.

Knows: rows, digests.  Knows not: files, checkpoints.
Invariant: equal rows have equal fingerprints in every process; of values that are neither JSON nor arrays only the type
counts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from ludus.rollout.mixture import Row

_PARTS = 64  # one digest for each part: enough to say where rows differ, in four kilobytes


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Rows, as a checkpoint remembers them."""

    num_rows: int
    columns: tuple[str, ...]
    """Of the first row."""
    digests: tuple[str, ...]
    """One for each of `_PARTS` equal parts of the rows, in order."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Self:
        length = _part_length(len(rows))
        one_by_one = iter(rows)  # a slice of a Hugging Face dataset is its columns
        parts = [list(islice(one_by_one, length)) for _ in range(0, len(rows), length)]
        return cls(len(rows), tuple(rows[0]) if rows else (), tuple(map(_digest, parts)))

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` made of one, and JSON of that."""
        return cls(values["num_rows"], tuple(values["columns"]), tuple(values["digests"]))

    def difference(self, now: Fingerprint) -> str | None:
        """How the rows of `now` differ from these, in words. None: they are equal."""
        if self == now:
            return None
        if self.num_rows != now.num_rows:
            return f"there were {self.num_rows} rows, and there are {now.num_rows} now"
        if self.columns != now.columns:
            return f"the first row had the columns {', '.join(self.columns)}, and has {', '.join(now.columns)} now"
        part = next(idx for idx, (old, new) in enumerate(zip(self.digests, now.digests, strict=True)) if old != new)
        length = _part_length(self.num_rows)
        last = min(self.num_rows, (part + 1) * length) - 1
        return f"of the rows {part * length} to {last} (counted from 0) at least one is another now"


def _part_length(num_rows: int) -> int:
    return max(1, -(-num_rows // _PARTS))


def _digest(rows: Sequence[Row]) -> str:
    text = json.dumps(list(map(dict, rows)), skipkeys=True, default=_shown)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _shown(value: Any) -> Any:
    """Arrays as their numbers, anything else as its type's name: a repr may hold an address, which differs by run."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__qualname__
