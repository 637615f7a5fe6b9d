"""Rewards of runs, kept and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.checks.bench.curves import compare_curves, curve_file, last_mean, read_curve, write_curve
from ludus.errors import UserError


def curve(*rewards: float) -> list[dict[str, float]]:
    return [{"step": number, "reward": reward} for number, reward in enumerate(rewards, start=1)]


def test_a_curve_survives_its_file(tmp_path: Path) -> None:
    """What is written is read; lines of something else are passed over."""
    path = curve_file(tmp_path / "curves", "trl", 2)
    write_curve(path, curve(0.1, 0.2))
    path.write_text(path.read_text() + "a warning\n" + '{"other": 1}\n')
    assert path.name == "trl-seed2.jsonl" and read_curve(path) == curve(0.1, 0.2)


def test_a_missing_curve_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """No file, or none of its lines a step: the message says how to record it."""
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"loss": 1}\n')
    for path in (tmp_path / "none.jsonl", empty):
        with pytest.raises(UserError, match="--record"):
            read_curve(path)


def test_the_end_of_a_curve() -> None:
    """Mean of the last steps and its standard error: of 0.2, 0.4, 0.6 the error is 0.2 / sqrt(3)."""
    mean, error = last_mean(curve(9.0, 0.2, 0.4, 0.6), num=3)
    assert mean == pytest.approx(0.4) and error == pytest.approx(0.2 / 3**0.5)


def test_no_worse_means_within_two_errors() -> None:
    """A row a seed and one for all; only a gap beyond two standard errors counts as worse."""
    steady, noisy = curve(*[0.5] * 10), curve(*[0.2, 0.7] * 5)
    rows = compare_curves({0: steady, 1: noisy}, {0: curve(*[0.6] * 10), 1: steady})
    assert [row["seed"] for row in rows] == ["0", "1", "all"]
    assert [row["no_worse"] for row in rows] == [False, True, True]
    assert rows[2]["ours"] == pytest.approx(0.475) and rows[2]["peer"] == pytest.approx(0.55)
    assert len(compare_curves({0: steady}, {0: steady})) == 1
