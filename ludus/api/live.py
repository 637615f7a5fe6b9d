"""Shows a training run while it goes on: a live panel on a terminal or in a notebook, else one plain line per step.

Knows: metrics by name, time.  Knows not: the loop, which calls it.
"""

from __future__ import annotations

import io
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ludus.loop.observer import Observer, RunSummary
from ludus.runs.failures import MOST_KINDS, Failure, failure_lines
from ludus.runs.metrics import Metrics
from ludus.runs.view import printable

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 48
_PANEL_WIDTH = 76
MOST_FAILURES = 4  # more would not leave room for the panel on a screen
Clock = Callable[[], float]
Show = Callable[[str, str], object]
"""Called with the panel as HTML and as text."""


@contextmanager
def watch(console: Console, name: str) -> Iterator[Observer]:
    """A live panel if the console is a terminal, plain lines if not. The terminal is restored after the block."""
    if not console.is_terminal:
        yield PlainLines(console)
        return
    panel = LivePanel(console, name)
    try:
        yield panel
    finally:
        panel.stop()


@contextmanager
def watch_script(name: str, is_wanted: bool | None) -> Iterator[Observer]:
    """The observer that shows a run's progress in a script or a notebook.

    is_wanted: None: show it if stdout is a terminal or a notebook. True: show it always, if need be on stderr.
    """
    console = Console()
    if is_wanted is False or not (is_wanted or console.is_terminal or console.is_jupyter):
        yield Observer()
    elif console.is_jupyter:
        yield NotebookPanel(name, _in_notebook())
    else:
        with watch(console if console.is_terminal else Console(stderr=True), name) as observer:
            yield observer


def _in_notebook() -> Show:
    """Draws in the output of the current cell, and later redraws in the same place."""
    from IPython.display import display  # it is installed, for it runs the cell

    drawn: list[Any] = []

    def show(html: str, text: str) -> None:
        data = {"text/html": html, "text/plain": text}
        if drawn:
            drawn[0].update(data, raw=True)
        else:
            drawn.append(display(data, raw=True, display_id=True))

    return show


def sparkline(values: Sequence[float], *, width: int = _SPARK_WIDTH) -> str:
    """The values as a row of at most `width` blocks, each the mean of an equal part of them."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    num = min(width, len(finite))
    cuts = [round(idx * len(finite) / num) for idx in range(num + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(cuts)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[min(int((mean - low) / span * len(_BLOCKS)), len(_BLOCKS) - 1)] for mean in means)


def duration(seconds: float) -> str:
    """3725 → '1:02:05', 65 → '1:05'."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress(Observer):
    """Computes how far a run is and how much time is left until the first of its limits."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._started_at = clock()
        self._total_steps: int | None = None
        self._total_seconds: float | None = None
        self._num_steps = 0
        self._stepped_s = self._trained_s = 0.0
        """In this process, and since the run's first start."""
        self._step = 0

    def on_start(self, total_steps: int | None, total_seconds: float | None) -> None:
        self._started_at = self._clock()
        self._total_steps, self._total_seconds = total_steps, total_seconds

    def on_step(self, step: int, metrics: Metrics) -> None:
        """Count the step's own time; the time of evaluations counts for no limit."""
        self._step, self._num_steps = step, self._num_steps + 1
        took_s = metrics.get("time/step_s", 0.0)
        self._stepped_s += took_s
        self._trained_s = metrics.get("time/train_total_s", self._trained_s + took_s)

    @property
    def left_s(self) -> float | None:
        """Seconds until the run ends. None: not known yet."""
        left = []
        if self._total_steps is not None and self._num_steps:
            left.append((self._total_steps - self._step) * self._stepped_s / self._num_steps)
        if self._total_seconds is not None:
            left.append(self._total_seconds - self._trained_s)
        return max(0.0, min(left)) if left else None

    @property
    def share(self) -> float:
        """How much of the run is done, from 0 to 1."""
        left_s = self.left_s
        return 0.0 if left_s is None else self._trained_s / max(self._trained_s + left_s, 1e-9)

    @property
    def steps(self) -> str:
        return f"{self._step}/{self._total_steps}" if self._total_steps is not None else str(self._step)


class PlainLines(Progress):
    """One line a step, for log files and pipes."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._told: set[str] = set()
        """Failures that were shown, by the id of their first episode."""

    def on_phase(self, doing: str) -> None:
        self._line(doing)

    def on_step(self, step: int, metrics: Metrics) -> None:
        super().on_step(step, metrics)
        left = [] if self.left_s is None else [f"left {duration(self.left_s)}"]
        shown = (*_results(metrics), *_of_data(metrics))
        self._line(f"step {self.steps}", *(f"{label} {text}" for label, text in shown), *left)

    def on_eval(self, step: int, metrics: Metrics) -> None:
        shown = (*_results(metrics), *_of_data(metrics))
        self._line(f"eval at step {step}", *(f"{label} {text}" for label, text in shown))

    def on_failures(self, failures: Sequence[Failure]) -> None:
        """Show each kind of failure once, with its first traceback; of very many kinds not all."""
        for failure in failures:
            if failure.first not in self._told and len(self._told) < MOST_KINDS:
                self._told.add(failure.first)
                about = f"an episode ended badly, {failure.outcome}, {failure.first}: {failure.trace.strip()}"
                self._line(printable(about))

    def on_end(self, summary: RunSummary) -> None:
        self._line(f"done: {summary.steps} steps in {duration(summary.train_seconds)} ({summary.stopped_by})")
        for line in failure_lines(summary.failures):
            self._line(line)

    def _line(self, *parts: str) -> None:
        self._console.print("  ".join(parts), highlight=False, markup=False, soft_wrap=True)


class RunPanel(Progress):
    """Progress, results and rewards so far as a panel, which subclasses draw."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._rewards: list[float] = []
        self._metrics: Metrics = {}
        self._evals: list[tuple[int, Metrics]] = []
        self._doing = ""
        self._failures: Sequence[Failure] = ()

    def on_phase(self, doing: str) -> None:
        self._doing = doing
        self.draw()

    def on_step(self, step: int, metrics: Metrics) -> None:
        super().on_step(step, metrics)
        self._metrics, self._doing = metrics, ""
        self._rewards.append(_first(metrics, _REWARD))
        self.draw()

    def on_eval(self, step: int, metrics: Metrics) -> None:
        self._evals.append((step, metrics))
        self._doing = ""
        self.draw()

    def on_failures(self, failures: Sequence[Failure]) -> None:
        self._failures = failures
        self.draw()

    def on_end(self, summary: RunSummary) -> None:
        self._failures = summary.failures
        self.draw()

    def draw(self) -> None:
        """Called when something has changed. Does nothing by default: a terminal's panel redraws by itself."""

    def render(self) -> RenderableType:
        rows: list[RenderableType] = [self._bar(), self._results()]
        if self._doing:
            rows.append(Text(self._doing, style="dim"))
        if self._rewards:
            rows.append(Text.assemble(("reward  ", "dim"), (sparkline(self._rewards), "cyan")))
        if found := _of_data(self._metrics):
            parts = [f"{name} {text}" for name, text in found]
            rows.append(Text.assemble(("rows  ", "dim"), " · ".join(parts)))
        if self._evals:
            parts = [f"{_held_out(metrics)} at step {step}" for step, metrics in self._evals[-4:]]
            rows.append(Text.assemble(("held out  ", "dim"), " → ".join(parts)))
        failed = failure_lines(self._failures, most=MOST_FAILURES)
        rows += [Text(line, style="red", overflow="ellipsis", no_wrap=True) for line in failed]
        return Panel(
            Group(*rows), title=f"[bold]{self._name}[/]", title_align="left", border_style="dim", width=_PANEL_WIDTH
        )

    def _bar(self) -> Table:
        columns = (Column(no_wrap=True), Column(ratio=1), Column(justify="right", no_wrap=True))
        grid = Table.grid(*columns, expand=True, padding=(0, 1))
        bar = ProgressBar(total=1.0, completed=self.share, complete_style="cyan", finished_style="green")
        left = "warming up" if self.left_s is None else f"{duration(self.left_s)} left"
        times = f"[dim]{duration(self._clock() - self._started_at)}[/] · {left}"
        grid.add_row(f"step [bold]{self.steps}[/]", bar, times)
        return grid

    def _results(self) -> Table:
        results = _results(self._metrics)
        grid = Table.grid(*(Column(no_wrap=True) for _ in results), expand=True, padding=(0, 2, 0, 0))
        if results:
            grid.add_row(*(Text(label, style="dim") for label, _ in results))
            grid.add_row(*(Text(text, style="bold") for _, text in results))
        return grid


class LivePanel(RunPanel):
    """On a terminal, redrawn twice a second."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(name)
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=2, transient=False)

    def on_phase(self, doing: str) -> None:
        super().on_phase(doing)
        self._live.start()

    def on_end(self, summary: RunSummary) -> None:
        super().on_end(summary)
        self.stop()
        for failure in summary.failures[:MOST_FAILURES]:  # below the last panel there is room for tracebacks
            if len(lines := failure.trace.strip().splitlines()) > 1:
                shown = printable("\n".join([str(failure), *lines]))
                self._live.console.print(Text(shown, style="dim"))

    def stop(self) -> None:
        """Leave the terminal as it was; the last panel stays. Stopping twice is allowed."""
        self._live.stop()


class NotebookPanel(RunPanel):
    """In a notebook's output, redrawn in place."""

    def __init__(self, name: str, show: Show) -> None:
        super().__init__(name)
        self._show = show

    def draw(self) -> None:
        console = Console(file=io.StringIO(), record=True, width=_PANEL_WIDTH, force_jupyter=False)
        console.print(self.render())
        text = console.export_text(clear=False)
        form = '<pre style="line-height: 1.2; white-space: pre">{code}</pre>'
        self._show(console.export_html(inline_styles=True, code_format=form), text)


_REWARD = ("rollout/reward", "eval/reward")
_SUCCESS = ("rollout/success", "eval/success")
_SHOWN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("reward", _REWARD, "{:.3f}"),
    ("success", _SUCCESS, "{:.0%}"),
    ("tokens/s", ("rollout/tokens_per_s",), "{:,.0f}"),
    ("loss", ("train/loss",), "{:+.4f}"),
    ("entropy", ("train/entropy",), "{:.2f}"),
    ("s/step", ("time/step_s",), "{:.1f}"),
    ("forked", ("rollout/forked_share",), "{:.0%}"),
)


def _results(metrics: Metrics) -> list[tuple[str, str]]:
    found = ((label, _first(metrics, names), form) for label, names, form in _SHOWN)
    return [(label, form.format(value)) for label, value, form in found if math.isfinite(value)]


def _held_out(metrics: Metrics) -> str:
    """How well held-out rows were played: the success, where agents report one."""
    success, reward = _first(metrics, _SUCCESS), _first(metrics, _REWARD)
    return f"{success:.0%}" if math.isfinite(success) else "–" if math.isnan(reward) else f"reward {reward:.3f}"


def _of_data(metrics: Metrics) -> list[tuple[str, str]]:
    """For each dataset by name its reward, and its success if agents report one; and how many rows a curriculum
    skipped."""
    shown: list[tuple[str, str]] = []
    for key, reward in metrics.items():
        area, _, name = key.partition("/reward/")
        if name:
            success = metrics.get(f"{area}/success/{name}")
            shown.append((name, f"{reward:.3f}" + ("" if success is None else f" ({success:.0%})")))
    for why in ("solved", "hopeless"):
        if count := metrics.get(f"data/skipped_{why}"):
            shown.append((f"skipped, {why}", f"{count:.0f}"))
    return shown


def _first(metrics: Metrics, names: Sequence[str]) -> float:
    """The first of these metrics that there is. NaN: there is none."""
    return next((metrics[name] for name in names if name in metrics), math.nan)
