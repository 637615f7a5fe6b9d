"""Curves as pictures: SVG that follows the reader's light or dark theme, and a PNG of the reward.

Knows: points and how to draw them.  Knows not: runs, episodes, which curves matter.
Colours in the SVG are CSS classes (`c0`, `c1`, … and `grid`, `tick`) that the page defines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

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


@dataclass(frozen=True, slots=True)
class Frame:
    """Where data lies in the picture: a linear map from values to pixels."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    x_ticks: tuple[float, ...]
    y_ticks: tuple[float, ...]
    x_span: Point
    y_span: Point

    def x(self, value: float) -> float:
        low, high = self.x_span
        return self.left + (value - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        low, high = self.y_span
        return self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom)


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


def line_chart(
    series: Sequence[Series],
    *,
    width: int = 260,
    height: int = 132,
    y_span: Point | None = None,
    is_large: bool = False,
) -> str:
    """An `<svg>` element. Long curves are drawn twice: every value faintly, and their moving average.

    y_span: fixed ends of the value axis. None: chosen from the data.
    """
    finite = [point for one in series for point in one.points if math.isfinite(point[1])]
    if not finite:
        return ""
    frame = _frame(finite, width, height, y_span, is_large)
    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" preserveAspectRatio="xMidYMid meet">']
    parts += [f"<title>{escape(', '.join(one.name for one in series))}</title>", *_axes(frame)]
    for one in series:
        parts += _dots(one, frame) if one.is_dotted else _curve(one, frame)
    return "".join([*parts, "</svg>"])


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
        smoothed = [y for _, y in smooth(one.points, span=_span(one))]
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


def _frame(points: Sequence[Point], width: int, height: int, y_span: Point | None, is_large: bool) -> Frame:
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
    return Frame(
        width=width,
        height=height,
        left=44,
        right=12,
        top=10,
        bottom=24 if is_large else 20,
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        x_span=(x_low, x_high),
        y_span=(y_ticks[0], y_ticks[-1]),
    )


def _axes(frame: Frame) -> list[str]:
    parts: list[str] = []
    for tick in frame.y_ticks:
        y = frame.y(tick)
        parts.append(
            f'<line class="grid" x1="{frame.left}" x2="{frame.width - frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{frame.left - 6}" y="{y + 3:.1f}" text-anchor="end">{short_number(tick)}</text>'
        )
    for tick in frame.x_ticks:
        x = frame.x(tick)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{frame.height - 5}" text-anchor="middle">{tick:g}</text>')
    return parts


def _curve(series: Series, frame: Frame) -> list[str]:
    if len([y for _, y in series.points if math.isfinite(y)]) == 1:
        return _dots(series, frame)
    faint = f'<path class="line raw c{series.colour}" d="{_path(series.points, frame)}"/>'
    averaged = smooth(series.points, span=_span(series))
    return [faint, f'<path class="line c{series.colour}" d="{_path(averaged, frame)}"/>']


def _dots(series: Series, frame: Frame) -> list[str]:
    parts = [f'<path class="line thin c{series.colour}" d="{_path(series.points, frame)}"/>']
    for x, y in series.points:
        if math.isfinite(y):
            place = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
            text = escape(f"{series.name}, step {x:g}: {y:.4g}")
            parts.append(f'<circle class="dot c{series.colour}" {place} r="4"><title>{text}</title></circle>')
    return parts


def _path(points: Sequence[Point], frame: Frame) -> str:
    parts: list[str] = []
    is_gap = True
    low, high = frame.y_span
    for x, y in points:
        if not math.isfinite(y):
            is_gap = True
            continue
        parts.append(f"{'M' if is_gap else 'L'}{frame.x(x):.1f} {frame.y(min(max(y, low), high)):.1f}")
        is_gap = False
    return "".join(parts)


def _span(series: Series) -> float:
    """Points that a moving average covers: a twelfth of the curve, so that short runs are hardly smoothed."""
    return max(1.0, len(series.points) / 12)
