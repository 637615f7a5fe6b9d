"""A run as one HTML page that needs nothing else, and its reward curve as a PNG.

Knows: the run store and what its numbers mean.  Knows not: who measured them; metrics it has no place for are shown
by name, so that none is hidden.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ludus.runs.forks import view_forks
from ludus.runs.plot import Point, Series, line_chart, short_number, templates, write_reward_png
from ludus.runs.store import RunStore
from ludus.runs.view import Decode, TurnView, view_turns
from ludus.types import Episode

MetricRows = Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """What was written."""

    html: Path
    png: Path | None
    """None: the run has no reward to draw yet."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One key figure of the header."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart."""

    title: str
    svg: Markup
    last: str

    @property
    def label(self) -> str:
        """The title without its area, as people say it."""
        return self.title.partition("/")[2].replace("_", " ").replace("/", ", ")


@dataclass(frozen=True, slots=True)
class Share:
    """One part of a whole: a line of the ledger, a span of the time bar."""

    name: str
    value: float
    share: float
    colour: int


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """One episode that the page shows turn by turn."""

    title: str
    episode: Episode
    step: int | None
    turns: tuple[TurnView, ...]


def write_report(run: RunStore, *, decode: Decode | None = None) -> ReportFiles:
    """Write `report.html` and `reward.png` into the run's folder.

    decode: text of token ids. None: the token view shows ids.  Raises UserError without matplotlib.
    """
    rows = run.metrics()
    curves = _learning_curves(rows)
    html = run.folder / "report.html"
    html.write_text(_render(run, rows, curves, decode), encoding="utf-8")
    if not curves:
        return ReportFiles(html, None)
    png = run.folder / "reward.png"
    write_reward_png(png, curves, title=run.name)
    return ReportFiles(html, png)


def _render(run: RunStore, rows: MetricRows, curves: Sequence[Series], decode: Decode | None) -> str:
    num_sampled, ledger = _ledger(run, rows)
    return (
        templates()
        .get_template("report.html.j2")
        .render(
            run=run,
            written_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            has_ended=run.summary() is not None,
            damages=run.damages(),
            tiles=_tiles(run, rows),
            curves=curves,
            learning=line_chart(curves, y_span=_unit_span(curves), is_large=True),
            panel_groups=_panel_groups(rows),
            time=_time_split(rows),
            ledger=_shares(ledger),
            num_sampled=num_sampled,
            forks=view_forks(run, rows, decode),
            failures=run.failures(),
            episodes=_chosen_episodes(run, decode),
            is_text=decode is not None,
        )
    )


# Curves

_LEARNING = (
    ("rollout/reward", "reward", False),
    ("rollout/success", "success", False),
    ("eval/success", "success, held out", True),
    ("eval/reward", "reward, held out", True),
)
"""Name of the metric, title of its curve, and whether it is measured now and then only."""


def _learning_curves(rows: MetricRows) -> tuple[Series, ...]:
    shown = enumerate((*_LEARNING, *_by_source(rows)))
    found = (Series(title, _points(rows, name), colour % 6, is_dotted) for colour, (name, title, is_dotted) in shown)
    return tuple(one for one in found if one.points)


def _by_source(rows: MetricRows) -> list[tuple[str, str, bool]]:
    """As `_LEARNING`, for each source of rows where there are several."""
    names = {name: None for _, metrics in rows for name in metrics}
    wholes = (("rollout/reward/", "reward", False), ("eval/success/", "success, held out", True))
    return [
        (name, f"{title}: {name.removeprefix(whole)}", is_dotted)
        for whole, title, is_dotted in wholes
        for name in names
        if name.startswith(whole)
    ]


def _unit_span(curves: Sequence[Series]) -> Point | None:
    """0 to 1 when everything fits in there, so that a rate can be read as one. None: let the data decide."""
    values = [y for one in curves for _, y in one.points if math.isfinite(y)]
    return (0.0, 1.0) if values and min(values) >= 0.0 and max(values) <= 1.0 else None


_PANEL_ORDER = ("loss", "kl", "entropy", "grad_norm", "clip", "ratio", "gap")
"""What a reader looks for first, by a word in the metric's name."""
_AREAS = (
    ("Training, step by step", ("train",)),
    ("Episodes and evaluations", ("rollout", "eval")),
    ("Data, batches and staleness", ("data", "batch", "staleness")),
    ("The machine", ("engine", "memory")),
)
_OTHER_AREAS = "Other measurements"


def _panel_groups(rows: MetricRows) -> list[tuple[str, list[Panel]]]:
    """Title and charts of every area: metrics that have no place of their own; the first area is what is read most."""
    shown = {name for name, _, _ in (*_LEARNING, *_by_source(rows))}
    names = {name: None for _, metrics in rows for name in metrics if name not in shown}
    grouped: dict[str, list[str]] = {title: [] for title, _ in (*_AREAS, (_OTHER_AREAS, ()))}
    for name in sorted(names, key=_panel_rank):
        area = name.partition("/")[0]
        if area not in ("time", "ledger"):
            grouped[next((title for title, areas in _AREAS if area in areas), _OTHER_AREAS)].append(name)
    return [(title, [_panel(rows, name) for name in each]) for title, each in grouped.items() if each]


def _panel_rank(name: str) -> tuple[int, str]:
    ranks = [rank for rank, word in enumerate(_PANEL_ORDER) if word in name]
    return (min(ranks, default=len(_PANEL_ORDER)), name)


def _panel(rows: MetricRows, name: str) -> Panel:
    points = _points(rows, name)
    is_rare = name.startswith("eval/")
    chart = line_chart([Series(name, points, 2 if is_rare else 0, is_rare)])
    return Panel(name, chart, short_number(points[-1][1]))


def _points(rows: MetricRows, name: str) -> tuple[Point, ...]:
    return tuple((float(step), metrics[name]) for step, metrics in rows if name in metrics)


# Figures


def _tiles(run: RunStore, rows: MetricRows) -> list[Tile]:
    summary = run.summary() or {}
    training = [row for row in run.episode_rows() if not row["is_eval"]]
    tiles = [
        _success_tile(summary, rows),
        Tile("training steps", str(sum("ledger/sampled" in metrics for _, metrics in rows))),
        Tile("episodes played", f"{len(training):,}", _outcome_note(training)),
        Tile("tokens sampled", short_number(float(sum(row["num_sampled_tokens"] for row in training)))),
    ]
    if "train_seconds" in summary:
        tiles.append(Tile("training time", _duration(float(summary["train_seconds"]))))
    if "peak_rss_mb" in summary:
        tiles.append(Tile("peak memory", f"{float(summary['peak_rss_mb']) / 1000:.2f} GB"))
    return [tile for tile in tiles if tile.value]


def _success_tile(summary: Mapping[str, Any], rows: MetricRows) -> Tile:
    before, after = summary.get("success_before"), summary.get("success_after")
    if after is not None:
        note = f"before training {before:.0%}" if before is not None else "held out"
        return Tile("success after training", f"{after:.0%}", note)
    rates = _points(rows, "rollout/success")
    return Tile("success, last step", f"{rates[-1][1]:.0%}" if rates else "")


def _outcome_note(training: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(row["outcome"] for row in training)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if kind != "ok")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


_WHOLE_TIMES = ("time/step_s", "time/train_total_s", "time/eval_total_s")
"""Durations that others are parts of, or that are summed up already."""


def _time_split(rows: MetricRows) -> tuple[Share, ...]:
    """Seconds by part of the step, the longest first; what no part claims is 'other'."""
    names = {name: None for _, metrics in rows for name in metrics if name.startswith("time/")}
    parts = {name[5:].removesuffix("_s"): _total(rows, name) for name in names if name not in _WHOLE_TIMES}
    in_steps = sum(seconds for name, seconds in parts.items() if name != "eval")
    other = _total(rows, "time/step_s") - in_steps
    if other > 0.0:
        parts["other"] = other
    return _shares(dict(sorted(parts.items(), key=lambda item: -item[1])))


_MASKED = "ledger/masked_"


def _ledger(run: RunStore, rows: MetricRows) -> tuple[float, Mapping[str, float]]:
    """Sampled tokens, and by what became of them: trained first, then masked by reason, the largest first.

    Those of the run's summary; before the end, what the steps and the evaluations until now add up to.
    """
    known = (run.summary() or {}).get("ledger")
    if known is None:
        names = {name: None for _, metrics in rows for name in metrics if name.startswith(_MASKED)}
        masked = {name.removeprefix(_MASKED): _total(rows, name) for name in names}
        evaluated = float(sum(row["num_sampled_tokens"] for row in run.episode_rows() if row["is_eval"]))
        masked["evaluation"] = masked.get("evaluation", 0.0) + evaluated
        sampled, trained = _total(rows, "ledger/sampled") + evaluated, _total(rows, "ledger/trained")
    else:
        sampled, trained, masked = known["sampled"], known["trained"], known["masked"]
    ordered = sorted(masked.items(), key=lambda item: -item[1])
    return sampled, {"trained": trained} | {name.replace("_", " "): value for name, value in ordered if value}


def _shares(totals: Mapping[str, float]) -> tuple[Share, ...]:
    whole = sum(totals.values())
    parts = [(name, value) for name, value in totals.items() if value > 0]
    return tuple(Share(name, value, value / whole, colour % 6) for colour, (name, value) in enumerate(parts))


def _total(rows: MetricRows, name: str) -> float:
    return sum(metrics.get(name, 0.0) for _, metrics in rows)


# Episodes


def _chosen_episodes(run: RunStore, decode: Decode | None) -> tuple[EpisodeView, ...]:
    """The best, the worst and a random episode with turns, of those played for training if there are any.

    Of equals the latest; none is shown twice.
    """
    played = [row for row in run.episode_rows() if row["num_turns"]]
    rows = [row for row in played if not row["is_eval"]] or played
    scored = [row for row in rows if row["reward"] is not None]
    chosen: dict[str, tuple[str, int | None]] = {}
    if scored:
        best = max(scored, key=lambda row: (row["reward"], row["finished_at"]))
        worst = min(scored, key=lambda row: (row["reward"], -row["finished_at"]))
        chosen[best["id"]] = ("Best episode", best["step"])
        chosen.setdefault(worst["id"], ("Worst episode", worst["step"]))
    others = [row for row in rows if row["id"] not in chosen]
    if others:
        picked = random.Random(run.name).choice(others)
        chosen[picked["id"]] = ("A random episode", picked["step"])
    credit = run.credit()
    views = []
    for episode_id, (title, step) in chosen.items():
        episode = run.episode(episode_id)
        views.append(EpisodeView(title, episode, step, view_turns(episode, decode=decode, credit=credit)))
    return tuple(views)
