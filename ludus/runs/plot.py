"""Curves as pictures: SVG that follows the reader's light or dark theme, and a PNG of the reward.

Knows: points and how to draw them.  Knows not: runs, episodes, which curves matter.
Colours in the SVG are CSS classes (`c0`, `c1`, … and `grid`, `tick`) that the page defines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import jinja2
from markupsafe import Markup

from ludus.errors import UserError

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. Points whose value is not finite leave a gap."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0
    is_dotted: bool = False
    """Few measurements, drawn as dots with a thin line between them, never smoothed."""

    @property
    def finite(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if math.isfinite(point[1]))

    @property
    def smoothed(self) -> tuple[Point, ...]:
        """The average over a twelfth of the curve, so that short runs are hardly smoothed."""
        return smooth(self.points, span=len(self.points) / 12)


@dataclass(frozen=True, slots=True)
class Frame:
    """Where data lies in the picture: a linear map from values to pixels."""

    width: int
    height: int
    bottom: int
    x_ticks: tuple[float, ...]
    y_ticks: tuple[float, ...]
    x_span: Point
    y_span: Point
    left: ClassVar = 44
    right: ClassVar = 12
    top: ClassVar = 10

    def x(self, value: float) -> float:
        low, high = self.x_span
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_span
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)

    def path(self, points: Sequence[Point]) -> str:
        """The points as a path of SVG, those outside of the frame at its edge."""
        parts: list[str] = []
        is_gap = True
        low, high = self.y_span
        for x, y in points:
            if math.isfinite(y):
                parts.append(f"{'M' if is_gap else 'L'}{self.x(x):.1f} {self.y(min(max(y, low), high)):.1f}")
            is_gap = not math.isfinite(y)
        return "".join(parts)


def smooth(points: Sequence[Point], *, span: float) -> tuple[Point, ...]:
    """Exponential moving average over about `span` points, without the bias towards the first ones."""
    keep = 1.0 - 1.0 / max(span, 1.0)
    smoothed: list[Point] = []
    total = weight = 0.0
    for x, y in points:
        if math.isfinite(y):
            total, weight = keep * total + y, keep * weight + 1.0
        smoothed.append((x, total / weight if weight else math.nan))
    return tuple(smoothed)


def nice_ticks(low: float, high: float, *, about: int) -> tuple[float, ...]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) from at most `low` to at least `high`."""
    if high <= low:
        margin = abs(low) * 0.5 or 0.5
        low, high = low - margin, high + margin
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(idx * step, 12) for idx in range(first, last + 1))


def short_number(value: float) -> str:
    """A number for an axis or a tile, at most about six characters: 0.00012 → 1.2e-4, 15300 → 15.3k."""
    size = abs(value)
    if not math.isfinite(value) or size == 0.0:
        return f"{value:g}"
    if size < 1e-3 or size >= 1e9:
        digits, _, power = f"{value:.1e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:.4g}" if size >= 1000 else f"{value:.3g}"


def line_chart(series: Sequence[Series], *, y_span: Point | None = None, is_large: bool = False) -> Markup:
    """An `<svg>` element. Long curves are drawn twice: every value faintly, and their moving average.

    y_span: fixed ends of the value axis. None: chosen from the data.
    """
    finite = [point for one in series for point in one.finite]
    if not finite:
        return Markup()
    frame = _frame(finite, y_span, is_large)
    return Markup(templates().get_template("chart.svg.j2").render(series=series, frame=frame))


@cache
def templates() -> jinja2.Environment:
    """Those of pages and charts."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ludus.runs"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["num"] = short_number
    return environment


def write_reward_png(path: Path, series: Sequence[Series], *, title: str) -> None:
    """Draw the series into a PNG file. Raises UserError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("a PNG of the curves needs matplotlib: pip install 'ludus[train]'") from None
    figure = Figure(figsize=(9, 4.6), dpi=160, layout="constrained", facecolor="#ffffff")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for one in series:
        colour = _PNG_COLOURS[one.colour % len(_PNG_COLOURS)]
        xs, ys = [x for x, _ in one.points], [y for _, y in one.points]
        if one.is_dotted:
            axes.plot(xs, ys, "o-", color=colour, label=one.name, markersize=6, linewidth=1.2, markeredgecolor="white")
            continue
        smoothed = [y for _, y in one.smoothed]
        axes.plot(xs, ys, color=colour, alpha=0.22, linewidth=1.0)
        axes.plot(xs, smoothed, color=colour, label=one.name, linewidth=2.2, solid_capstyle="round")
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color="#1d2433", pad=12)
    axes.set_xlabel("training step", color="#667085")
    axes.grid(axis="y", color="#e8eaf0", linewidth=0.8)
    axes.tick_params(length=0, colors="#667085")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#d0d5dd")
    axes.margins(x=0.01)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="best", labelcolor="#344054")
    figure.savefig(path)


_PNG_COLOURS = ("#4f5bd5", "#0f9d76", "#d9730d", "#c2417c", "#6b7280")


def _frame(points: Sequence[Point], y_span: Point | None, is_large: bool) -> Frame:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    y_ticks = nice_ticks(*(y_span or (min(ys), max(ys))), about=5 if is_large else 3)
    x_low, x_high = min(xs), max(xs)
    if x_low == x_high:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    x_ticks = tuple(
        tick
        for tick in nice_ticks(x_low, x_high, about=8 if is_large else 4)
        if x_low <= tick <= x_high and float(tick).is_integer()
    )
    width, height, bottom = (960, 300, 24) if is_large else (260, 132, 20)
    return Frame(width, height, bottom, x_ticks, y_ticks, x_span=(x_low, x_high), y_span=(y_ticks[0], y_ticks[-1]))
