"""Draws curves as a PNG.

Knows: points and how to draw them.  Knows not: runs, episodes, which curves matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ludus.errors import UserError

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve. Points whose value is not finite leave a gap."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0
    is_dotted: bool = False
    """Drawn as dots joined by a thin line and never smoothed, for series of few measurements."""

    @property
    def smoothed(self) -> tuple[Point, ...]:
        """Moving average over a twelfth of the curve, so that short runs are hardly smoothed."""
        return smooth(self.points, span=len(self.points) / 12)


def smooth(points: Sequence[Point], *, span: float) -> tuple[Point, ...]:
    """Exponential moving average over about `span` points, with bias correction at the start."""
    keep = 1.0 - 1.0 / max(span, 1.0)
    smoothed: list[Point] = []
    total = weight = 0.0
    for x, y in points:
        if math.isfinite(y):
            total, weight = keep * total + y, keep * weight + 1.0
        smoothed.append((x, total / weight if weight else math.nan))
    return tuple(smoothed)


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
        round_idx, place = divmod(one.colour, len(_PNG_COLOURS))
        colour, style = _PNG_COLOURS[place], _PNG_STYLES[round_idx % len(_PNG_STYLES)]
        xs, ys = [x for x, _ in one.points], [y for _, y in one.points]
        if one.is_dotted:
            axes.plot(xs, ys, "o-", color=colour, label=one.name, markersize=6, linewidth=1.2, markeredgecolor="white")
            continue
        smoothed = [y for _, y in one.smoothed]
        axes.plot(xs, ys, color=colour, alpha=0.22, linewidth=1.0)
        axes.plot(xs, smoothed, color=colour, label=one.name, linewidth=2.2, linestyle=style)
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
_PNG_STYLES = ("-", "--", ":")
"""Line styles of the first, second and third round through the colours."""
