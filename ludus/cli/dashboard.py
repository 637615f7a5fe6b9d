"""`ludus watch --terminal`: a run's overview as text, for machines without a browser.

Knows: rich, a watched run.  Knows not: files, HTTP.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ludus.api.live import duration
from ludus.cli.console import plain_table
from ludus.errors import LudusError
from ludus.runs.view import printable
from ludus.runs.watch.folder import RunsFolder
from ludus.runs.watch.query import EpisodeQuery
from ludus.runs.watch.run import WatchedRun

_REFRESH_S = 2.0
_CHARTS = (
    ("rollout/reward", "eval/reward"),
    ("rollout/success", "eval/success"),
    ("train/loss", ""),
    ("train/entropy", ""),
    ("train/logprob_gap_mean", ""),
    ("rollout/tokens_per_s", ""),
)
"""Pairs of metrics that share a chart: one of training, one of evaluations."""
_WIDTH, _HEIGHT = 35, 6  # characters of a chart: two fit side by side in 80 columns
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of the dots of a braille character, by column, from the top."""
_COLOURS = {"bad": "bold red", "warn": "yellow", "info": "dim"}
_STATES = {"running": "green", "finished": "cyan", "interrupted": "red"}
_WHOLES = ("step", "train_total", "eval")
"""Times of all parts of a step together, of all steps, and between them."""
_NUM_EPISODES, _NUM_RUNS = 6, 8
_ENOUGH = 1_000
"""Number of newest episodes that are read before the overview is printed, if it is printed only once."""


def show_terminal(folder: RunsFolder, console: Console) -> None:
    """Show the overview, redrawn until Ctrl-C; if stdout is no terminal, print it once when everything was read."""
    if not console.is_terminal:
        for newest in folder.outlines()[:1]:
            folder.run(newest["id"]).wait(num_read=_ENOUGH)
        console.print(render(folder))
        return
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            try:
                live.update(render(folder, console), refresh=True)
            except LudusError as error:  # perhaps temporary: try again at the next redraw
                live.update(_text(str(error), "red"), refresh=True)
            time.sleep(_REFRESH_S)


def render(folder: RunsFolder, screen: Console | None = None) -> RenderableType:
    """The overview of a run; of several runs, their list and the overview of the newest.

    screen: the console that it must fit into; older runs, and if needed the last charts, are left out. None: show
    everything.
    """
    outlines = folder.outlines()
    if not outlines:
        return _text(f"there is no run in {folder.path} yet", "dim")
    above: list[RenderableType] = []
    if not folder.is_run:
        listed = outlines if screen is None else outlines[:_NUM_RUNS]
        rest = [_text(f"and {len(outlines) - len(listed):,} older runs", "dim")] if len(outlines) > len(listed) else []
        above = [_runs(listed), *rest, Rule(style="dim")]
    run = folder.run(outlines[0]["id"])
    about, ledger = run.overview(), run.ledger()
    above.append(_head(about))
    below: list[RenderableType] = [_text(f"damaged: {sentence}", "yellow") for sentence in about["damage"]]
    below += [_text(f"• {each['text']}", _COLOURS[each["severity"]]) for each in run.health()["findings"]]
    below += [_shares("tokens", {"trained": ledger["trained"], **ledger["masked"]}), _shares("time", _times(run))]
    below.append(_episodes(run))
    charts = _charts(run)
    while True:
        shown = Group(*above, *([Columns(charts, padding=(0, 2))] if charts else []), *below)
        if not charts or screen is None or len(screen.render_lines(shown)) <= screen.height:
            return shown
        charts.pop()


def _text(said: str, style: str = "", **how: Any) -> Text:
    """Text from a run, such as an agent's, with control characters escaped."""
    return Text(printable(said), style=style, **how)


def chart(points: Sequence[tuple[float, float]], *, width: int, height: int) -> list[str]:
    """The points as a curve in braille, `height` rows of `width` characters; values that are not finite are left
    out."""
    known = [(x, y) for x, y in points if math.isfinite(y)]
    grid = [[0] * width for _ in range(height)]
    if known:
        lows, highs = (tuple(edge(each[axis] for each in known) for axis in (0, 1)) for edge in (min, max))
        scales = (2 * width - 1, 4 * height - 1)
        dots = [
            tuple(
                round((value / 2 - low / 2) / ((high / 2 - low / 2) or 1.0) * scale)  # halved, to avoid overflow
                for value, low, high, scale in zip(each, lows, highs, scales, strict=True)
            )
            for each in known
        ]
        for before, dot in zip([dots[0], *dots], dots, strict=False):
            for x, y in _line(before, dot):
                row = 4 * height - 1 - y
                grid[row // 4][x // 2] |= _DOTS[x % 2][row % 4]
    return ["".join(chr(0x2800 + cell) for cell in row) for row in grid]


def _line(start: tuple[int, ...], end: tuple[int, ...]) -> list[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * at / steps), round(start[1] + (end[1] - start[1]) * at / steps))
        for at in range(steps + 1)
    ]


def _charts(run: WatchedRun) -> list[RenderableType]:
    found: list[RenderableType] = []
    for name, evaluated in _CHARTS:
        points, held_out = run.curves.points(name), run.curves.points(evaluated) if evaluated else []
        if not (points or held_out):
            continue
        values = [value for _, value in points or held_out]
        rows = chart([(float(step), value) for step, value in points or held_out], width=_WIDTH, height=_HEIGHT)
        ends = f"{min(values):.3g} to {max(values):.3g}" + (f", held out {held_out[-1][1]:.4g}" if held_out else "")
        lines = Text("\n".join(rows), style="cyan")
        title = f"[bold]{name}[/] {values[-1]:.4g}"
        subtitle, wide = f"[dim]{ends}[/]", _WIDTH + 4  # a fixed width, whatever the length of the title
        found.append(Panel(lines, title=title, subtitle=subtitle, title_align="left", border_style="dim", width=wide))
    return found


def _head(about: Mapping[str, Any]) -> Text:
    updated = about["updated_at"]
    ago = "" if updated is None else f", {duration(time.time() - updated)} ago"
    state = (about["state"], _STATES.get(about["state"], "dim"))
    steps = about["steps"][-1] if about["steps"] else 0
    algorithm = about["algorithm"]["name"] or ""
    return Text.assemble(
        (printable(about["name"]), "bold"), "  ", state, f"  step {steps}{ago}", (f"  {algorithm}", "dim")
    )


def _times(run: WatchedRun) -> dict[str, float]:
    """Seconds of the last step, by part."""
    steps = run.curves.points("time/step_s")
    numbers = run.curves.at(steps[-1][0]) if steps else {}
    found = {
        name.removeprefix("time/").removesuffix("_s"): s for name, s in numbers.items() if name.startswith("time/")
    }
    return {part: spent_s for part, spent_s in found.items() if part not in _WHOLES}


def _shares(label: str, parts: Mapping[str, float]) -> Text:
    total = sum(parts.values())
    shown = sorted((item for item in parts.items() if item[1] > 0), key=lambda item: -item[1])
    said = (
        " · ".join(f"{name.replace('_', ' ')} {value / total:.0%}" for name, value in shown) if total else "nothing yet"
    )
    return Text.assemble((f"{label:<8}", "dim"), said)


def _runs(outlines: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table("run", "state", "step", "reward", "success", right=("step", "reward", "success"))
    for each in outlines:
        numbers = [each["num_steps"], each["reward"], each["success"]]
        cells = ["" if value is None else f"{value:.4g}" for value in numbers]
        state = Text(each["state"], style=_STATES.get(each["state"], "dim"))
        table.add_row(_text(each["id"]), state, *cells)
    return table


def _episodes(run: WatchedRun) -> Table:
    found = run.episodes(EpisodeQuery(), offset=0, limit=_NUM_EPISODES)
    table = plain_table("episode", "outcome", "reward", "turns", "tokens", "", right=("reward", "turns", "tokens"))
    for each in found["episodes"]:
        reward = "" if each["reward"] is None else f"{each['reward']:.3f}"
        text = _text(each["reason"] or each["first_text"] or "", "dim", no_wrap=True, overflow="ellipsis")
        numbers = (reward, str(each["num_turns"]), str(each["num_tokens"]))
        table.add_row(_text(each["id"]), Text(each["outcome"]), *numbers, text)
    return table
