"""Charts put the right numbers in the right places."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ludus.runs.plot import Series, line_chart, nice_ticks, short_number, smooth, write_reward_png


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, (0, 0.2, 0.4, 0.6, 0.8, 1.0)), (3, 17, (0, 5, 10, 15, 20)), (0, 0, (-0.6, -0.4, -0.2, 0, 0.2, 0.4, 0.6))],
)
def test_ticks_are_round_and_cover_the_data(low: float, high: float, ticks: tuple[float, ...]) -> None:
    """Axis values are round numbers that enclose what is drawn."""
    assert nice_ticks(low, high, about=5) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.00012, "1.2e-4"), (0.5, "0.5"), (1234.0, "1234"), (15300.0, "15.3k"), (2.5e6, "2.5M")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    """Small, middling and large numbers all fit beside an axis."""
    assert short_number(value) == text


def test_smoothing_is_unbiased_at_the_start() -> None:
    """The average of a constant is that constant from its first point on, and gaps do not spoil it."""
    points = [(0.0, 3.0), (1.0, math.nan), (2.0, 3.0)]
    assert [y for _, y in smooth(points, span=10)] == pytest.approx([3.0, 3.0, 3.0])


def test_a_chart_is_wellformed_and_leaves_gaps() -> None:
    """The SVG parses, names its series, and a value that is not finite breaks the line."""
    curve = Series("loss <raw>", ((0.0, 1.0), (1.0, math.nan), (2.0, 2.0), (3.0, 1.0)))
    root = ElementTree.fromstring(line_chart([curve]))
    assert root.findtext("title") == "loss <raw>"
    raw = next(path for path in root.iter("path") if "raw" in path.attrib["class"])
    assert raw.attrib["d"].count("M") == 2


def test_nothing_to_draw_is_no_chart() -> None:
    """Without a finite point there is no empty frame."""
    assert line_chart([Series("x", ((0.0, math.nan),))]) == ""


def test_the_png_is_a_picture(tmp_path: Path) -> None:
    """The reward curve is written as a PNG of readable size."""
    write_reward_png(tmp_path / "r.png", [Series("reward", ((0.0, 0.1), (1.0, 0.4)))], title="run")
    data = (tmp_path / "r.png").read_bytes()
    assert data.startswith(b"\x89PNG") and int.from_bytes(data[16:20], "big") >= 1000
