from __future__ import annotations

import random

import pytest

from ludus.runs.watch.shown import shown_from, shown_to


def shown(value: float) -> float:
    """The number that the page's `num` shows, as a number."""
    size = abs(value)
    if size >= 1e6:
        return float(f"{value / 1e6:.2f}") * 1e6
    if size >= 1e4:
        return float(f"{value / 1e3:.1f}") * 1e3
    if value == int(value):
        return value
    if size >= 0.001:
        return float(f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 10 else f"{value:.3f}")
    return float(f"{value:.1e}")


def test_a_bound_holds_for_what_is_shown() -> None:
    """Values of any size pass exactly if the number that stands in the table does."""
    rng = random.Random(0)
    for _ in range(20_000):
        value = rng.choice((-1, 1)) * 10 ** rng.uniform(-6, 7)
        bound = shown(value * (1 + rng.choice((0.0, 1e-4, -1e-4, 1e-3, -1e-3, 0.3))))
        assert (value >= shown_from(bound)) == (shown(value) >= bound - 1e-12 * abs(bound)), (value, bound)
        assert (value <= shown_to(bound)) == (shown(value) <= bound + 1e-12 * abs(bound)), (value, bound)


@pytest.mark.parametrize(
    ("bound", "least", "most"),
    [
        (0.354, 0.3535, 0.3545),
        (0.0, 0.0, 0.0),
        (10.0, 9.9995, 10.005),
        (-1.0, -1.0005, -0.9995),
        (1e-320, 1e-320, 1e-320),
    ],
)
def test_a_bound_is_as_wide_as_its_last_digit(bound: float, least: float, most: float) -> None:
    """0.354 stands for what is rounded to it; 0 for nothing else."""
    assert shown_from(bound) == pytest.approx(least, rel=1e-12, abs=0) and shown_to(bound) == pytest.approx(
        most, rel=1e-12, abs=0
    )
