"""Metrics: means over rows that need not have the same names."""

from __future__ import annotations

from ludus.runs.metrics import merge_means


def test_means_are_over_the_rows_that_have_the_name() -> None:
    """A name missing from a row does not count as zero there."""
    assert merge_means([{"a": 1, "b": 2}, {"a": 3}]) == {"a": 2.0, "b": 2.0}
