"""Keeps the numbers of trained tokens, as the loss used them, until the batch has been trained.

Knows: tensors of numbers and turns.  Knows not: losses, files.
Invariant: a token is kept once, at one rank; tensors stay on their device until `parts` is called, so that recording
never waits for the device.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ludus.runs.tokens import TokenColumns

_NUMBER = 4  # bytes


class TokenRecord:
    """The record of one batch at one rank."""

    def __init__(self) -> None:
        self._turns: list[Tensor] = []
        self._columns: dict[str, list[Tensor]] = {}

    def add(self, turns_N: Sequence[int] | Tensor, numbers: Mapping[str, Tensor]) -> None:
        """numbers: by name, a number for each token, shape (N,); every call must have the same names."""
        self._turns.append(torch.as_tensor(turns_N))
        for name, each in numbers.items():
            self._columns.setdefault(name, []).append(each.detach())

    def parts(self) -> dict[str, Any]:
        """All that was kept, as JSON values."""
        if not self._turns:
            return {"turns": [], "columns": {}}
        numbers, counts = torch.cat(self._turns).unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
        columns = {name: torch.cat(each).float().cpu().numpy() for name, each in self._columns.items()}
        return {
            "turns": list(zip(numbers.tolist(), counts.tolist(), strict=True)),
            "columns": {
                name: base64.b64encode(each.astype("<f4").tobytes()).decode() for name, each in columns.items()
            },
        }


def whole_record(parts: Iterable[Mapping[str, Any]], *, num_minibatches: int) -> TokenColumns:
    """The record of the whole batch, put together from all ranks, of which several may have parts of one turn."""
    kept = [part for part in parts if part["turns"]]
    names = dict.fromkeys(itertools.chain.from_iterable(part["columns"] for part in kept))
    columns = {name: [base64.b64decode(part["columns"][name]) for part in kept] for name in names}
    places: dict[int, list[tuple[int, slice]]] = {}
    """By turn the ranks that have some of its tokens, and where."""
    for rank, part in enumerate(kept):
        ends = list(itertools.accumulate(count for _, count in part["turns"]))
        for (number, count), end in zip(part["turns"], ends, strict=True):
            places.setdefault(number, []).append((rank, slice((end - count) * _NUMBER, end * _NUMBER)))
    spans = [span for of_turn in places.values() for span in of_turn]
    return TokenColumns(
        turns=[(number, sum(at.stop - at.start for _, at in each) // _NUMBER) for number, each in places.items()],
        columns={name: b"".join(by_rank[rank][at] for rank, at in spans) for name, by_rank in columns.items()},
        num_minibatches=num_minibatches,
    )
