"""Curves are smoothed without bias, and drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ludus.runs.plot import Series, smooth, write_reward_png


def test_smoothing_is_unbiased_at_the_start() -> None:
    """The average of a constant is that constant from its first point on, and gaps do not spoil it."""
    points = [(0.0, 3.0), (1.0, math.nan), (2.0, 3.0)]
    assert [y for _, y in smooth(points, span=10)] == pytest.approx([3.0, 3.0, 3.0])


def test_the_png_is_a_picture(tmp_path: Path) -> None:
    """The reward curve is written as a PNG of readable size."""
    write_reward_png(tmp_path / "r.png", [Series("reward", ((0.0, 0.1), (1.0, 0.4)))], title="run")
    data = (tmp_path / "r.png").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20], "big") >= 1000
