"""Page tables of running sequences that stay on a card: a step sends it the pages that are new.

Knows: pages by number, tensors.  Knows not: sequences, steps, kernels.
Invariant: what lies in a row on the card is what `_rows` says of it, compared with the table before each use; so a
table may be changed, ended or begun anew without a word.

Tables of hundreds of sequences are some hundred thousand numbers. Made into a tensor anew in each step they took longer
than many a step: of 256 sequences of 8,192 tokens 9 ms on one core, and compared and sent like this 0.7.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class CardTables:
    """A row for each of the sequences that ran last, at most as many as run at once. Not thread-safe."""

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        """width: most pages of a table."""
        self._width = width
        self.page_ids = torch.zeros(num_rows * width, dtype=torch.int32, device=device)
        """All rows, one after the other."""
        self._free = list(range(num_rows))
        self._rows: dict[int, tuple[int, list[int]]] = {}
        """By `id` of the table that it was copied from: which row on the card, and what lies there."""

    def __repr__(self) -> str:
        return f"<CardTables of {len(self._rows)} sequences>"

    def place(self, tables: Sequence[Sequence[int]]) -> list[int]:
        """Where in `page_ids` each table begins; what the card does not have of them is sent there."""
        at: list[int] = []
        pages: list[int] = []
        starts: list[int] = []
        changed: list[tuple[list[int], int, Sequence[int]]] = []
        wanted = {id(table) for table in tables}
        for table in tables:
            row, held = self._row_of(table, wanted)
            start = row * self._width
            starts.append(start)
            num_same = len(held) if list(table[: len(held)]) == held else 0
            if len(table) > num_same or len(held) > num_same:
                at += range(start + num_same, start + len(table))
                pages += table[num_same:]
                changed.append((held, num_same, table[num_same:]))
        if at:
            sent = torch.tensor([at, pages], dtype=torch.int64).to(self.page_ids.device)
            self.page_ids[sent[0]] = sent[1].int()
        for held, num_same, more in changed:  # only now, for a full card may have refused what was sent
            held[num_same:] = more
        return starts

    def _row_of(self, table: Sequence[int], wanted: set[int]) -> tuple[int, list[int]]:
        found = self._rows.get(id(table))
        if found is None:
            if not self._free:  # of those that are not in this step
                ended = [key for key in self._rows if key not in wanted]
                self._free += [self._rows.pop(key)[0] for key in ended]
            found = self._rows[id(table)] = (self._free.pop(), [])
        return found
