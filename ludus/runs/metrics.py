"""Metrics: flat mappings from `area/name_unit` to a number, returned by what measures them and written by the loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Metrics = Mapping[str, float]


def merge_means(rows: Iterable[Metrics]) -> dict[str, float]:
    """The mean of every metric over the rows that have it, in order of first appearance."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(float(value))
    return {name: sum(found) / len(found) for name, found in values.items()}
