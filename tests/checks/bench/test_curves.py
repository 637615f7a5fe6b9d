"""Rewards of runs, kept and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.checks.bench.curves import (
    compare_curves,
    curve_file,
    last_mean,
    plot_curves,
    read_curves,
    recorded,
    write_curve,
)
from ludus.errors import UserError


def curve(*rewards: float) -> list[dict[str, float]]:
    return [{"step": number, "reward": reward} for number, reward in enumerate(rewards, start=1)]


def test_a_curve_survives_its_file(tmp_path: Path) -> None:
    """What is written is read, seed by seed; lines of something else, and names that go on, are passed over."""
    path = curve_file(tmp_path / "curves", "trl", 2)
    write_curve(path, curve(0.1, 0.2))
    path.write_text(path.read_text() + "a warning\n" + '{"other": 1}\n')
    write_curve(curve_file(path.parent, "trl", 10), curve(0.3, 0.4))
    write_curve(curve_file(path.parent, "trl-fp32", 0), curve(0.5, 0.6))
    assert path.name == "trl-seed2.jsonl"
    assert read_curves(path.parent, "trl") == {2: curve(0.1, 0.2), 10: curve(0.3, 0.4)}
    assert recorded(path.parent, ("trl-autocast", "trl-fp32")) == ("trl-fp32",) and recorded(path.parent, ()) == ()


def test_a_missing_curve_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """No file, or none of its lines a step: the message says how to record it."""
    (tmp_path / "empty-seed0.jsonl").write_text('{"loss": 1}\n')
    with pytest.raises(UserError, match=r"none-seed0\.jsonl: record it once.*--record"):
        read_curves(tmp_path, "none")
    with pytest.raises(UserError, match=r"empty-seed0\.jsonl holds no line.*record it again"):
        read_curves(tmp_path, "empty")


def test_the_end_of_a_curve() -> None:
    """Mean of the last steps and its standard error: of 0.2, 0.4, 0.6 the error is 0.2 / sqrt(3)."""
    mean, error = last_mean(curve(9.0, 0.2, 0.4, 0.6), num=3)
    assert mean == pytest.approx(0.4) and error == pytest.approx(0.2 / 3**0.5)


def test_no_worse_means_within_two_errors() -> None:
    """A row a name; of several seeds the error is that of their mean: 0.45 and 0.5 have one of 0.025."""
    steady, noisy = curve(*[0.5] * 10), curve(*[0.2, 0.7] * 5)
    high = {0: curve(*[0.6] * 10)}
    ours, same, better = compare_curves({"ours": {0: steady, 1: noisy}, "same": {4: steady}, "better": high})
    assert ours["reward"] == pytest.approx(0.475) and ours["error"] == pytest.approx(0.025)
    assert ours["seeds"] == "0: 0.500, 1: 0.450" and same["seeds"] == "4: 0.500" and same["error"] == 0.0
    assert [row["no_worse"] for row in (ours, same, better)] == [True, True, False]
    assert compare_curves({"noisy": {0: noisy}, "better": high})[1]["no_worse"]


def test_curves_of_other_lengths_are_refused() -> None:
    """A learning rate that falls to 0 after 40 steps makes another run of the first 20."""
    with pytest.raises(UserError, match="a, seed 0: 1, b, seed 3: 2"):
        compare_curves({"a": {0: curve(0.1)}, "b": {3: curve(0.1, 0.2)}})


def test_curves_are_drawn(tmp_path: Path) -> None:
    """A PNG, one line for each name."""
    plot_curves(tmp_path / "a.png", {"a": {0: curve(0.1, 0.2), 1: curve(0.3, 0.4)}, "b": {0: curve(0, 1)}}, title="T")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
