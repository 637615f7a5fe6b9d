"""Measures numbers of sampled tokens row by row before a batch is trained, and groups them by turn.

Knows: rows, functions that measure their targets.  Knows not: which numbers there are, what they are used for.
Invariant: all targets of a turn are in one row and in order, so neither rows nor ranks change which token a number
belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ludus.algorithms.measured import TokenNumbers
from ludus.algorithms.pack import PackedRow
from ludus.errors import InternalError

Measure = Callable[[PackedRow], Tensor]
"""A number of every target of a row, shape (N,), without gradients."""


def sampled_logprobs(row: PackedRow) -> Tensor:
    """The recorded logprobs, in float64, which holds them exactly."""
    return torch.tensor(row.logprobs, dtype=torch.float64)


def measure_rows(
    rows: Iterable[PackedRow], measures: Mapping[str, Measure], hold: Callable[[], AbstractContextManager[None]]
) -> dict[str, list[Any]]:
    """The measured numbers of all targets by name, and the `turns` they belong to, as JSON values.

    hold: makes a context manager that is entered while a row is computed.
    """
    columns: dict[str, list[Any]] = {"turns": [], **{name: [] for name in measures}}
    for row in rows:
        if row.turns is None:
            raise InternalError("measured numbers belong to turns, and a row does not say to which")
        columns["turns"].extend(row.turns)
        with hold():
            for name, measure in measures.items():
                columns[name].extend(measure(row).tolist())
    return columns


def numbers_by_turn(parts: Iterable[Mapping[str, list[Any]]]) -> dict[int, TokenNumbers]:
    """What `measure_rows` found on all ranks, by the number of the turn."""
    found: dict[int, dict[str, list[float]]] = {}
    for part in parts:
        names = [name for name in part if name != "turns"]
        for turn, *numbers in zip(part["turns"], *(part[name] for name in names), strict=True):
            columns = found.setdefault(turn, {name: [] for name in names})
            for name, number in zip(names, numbers, strict=True):
                columns[name].append(number)
    return {
        turn: TokenNumbers(**{name: tuple(column) for name, column in columns.items()})
        for turn, columns in found.items()
    }
