from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ludus.cli.dashboard import chart, render
from ludus.runs.store import RunStore
from ludus.runs.watch.folder import RunsFolder
from ludus.types import Outcome
from tests.runs.conftest import episode_of, fill_run


def text_of(folder: Path, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    with closing(RunsFolder(folder)) as runs:
        for each in runs.ids():
            runs.run(each).wait(num_read=100)
        console.print(render(runs))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_overview_has_curves_health_ledger_and_episodes(tmp_path: Path) -> None:
    """On a wide terminal and on one of 80 columns, where no line is longer."""
    with RunStore.create(tmp_path, "run", "model: {path: x}\nalgorithm: {name: grpo}\n") as store:
        fill_run(store, num_steps=12)
    said = text_of(tmp_path / "run")
    for part in ("run  interrupted  step 11", "rollout/reward", "held out", "tokens", "trained", "ep-95"):
        assert part in said, part
    assert "time" in said and "⠀" in said
    assert max(map(len, text_of(tmp_path / "run", 80).splitlines())) <= 80
    RunStore.create(tmp_path, "other", "model: {path: x}\n").close()
    assert {"other", "run"} <= set(text_of(tmp_path).split())


def test_without_a_terminal_it_is_printed_once(ludus: Callable[..., Any], tmp_path: Path) -> None:
    with RunStore.create(tmp_path, "run", "model: {path: x}\n") as store:
        fill_run(store, num_steps=2)
    shown = ludus("watch", tmp_path / "run", "--terminal")
    assert shown.code == 0 and "rollout/reward" in shown.out


def test_what_is_wrong_is_said_when_it_is_printed_once(ludus: Callable[..., Any], tmp_path: Path) -> None:
    """Damage and reasons of failures take time to be found, and there is no second look."""
    with RunStore.create(tmp_path, "run", "model: {path: x}\n") as store:
        for number in range(4):
            store.add_episode(episode_of(number, kind="failed", reward=None), step=0)
        store.add_metrics(0, {"rollout/reward": 0.5})
    (tmp_path / "run" / "config.yaml").write_text("model: [\n")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write("no json\n")
    said = " ".join(ludus("watch", tmp_path / "run", "--terminal").out.split())
    for part in ("1 of its lines cannot be read", "config.yaml is damaged", "4 x failed: the agent raised ValueError"):
        assert part in said


def test_on_a_small_screen_charts_make_room_for_what_is_said(tmp_path: Path) -> None:
    """Health, the ledger and the newest episodes stand on 24 lines, and as many charts as fit."""
    with RunStore.create(tmp_path, "run", "model: {path: x}\n") as store:
        fill_run(store, num_steps=12)
    with closing(RunsFolder(tmp_path / "run")) as runs:
        runs.run("run").wait(num_read=100)
        for height, num_charts in ((24, 2), (100, 6)):
            console = Console(file=io.StringIO(), width=80, height=height)
            console.print(render(runs, console))
            said = console.file.getvalue()  # type: ignore[attr-defined]
            assert len(said.splitlines()) <= height and said.count("╭") == num_charts
            assert "The run was broken off" in said and "trained" in said and "ep-95" in said


def test_of_many_runs_the_newest_leave_room_for_their_overview(tmp_path: Path) -> None:
    """On a screen of 40 lines; without a screen all are listed."""
    for number in range(30):
        RunStore.create(tmp_path, f"old{number:02d}", "model: {path: x}\n").close()
    with RunStore.create(tmp_path, "run", "model: {path: x}\n") as store:
        fill_run(store, num_steps=12)
    with closing(RunsFolder(tmp_path)) as runs:
        runs.run("run").wait(num_read=100)
        console = Console(file=io.StringIO(), width=80, height=40)
        console.print(render(runs, console))
        said = console.file.getvalue()  # type: ignore[attr-defined]
        assert len(said.splitlines()) <= 40 and "and 23 older runs" in said
        assert "The run was broken off" in said and "ep-95" in said and "rollout/reward" in said
    assert "old29" in text_of(tmp_path) and "old00" in text_of(tmp_path)


def test_no_terminal_obeys_what_agents_said(tmp_path: Path) -> None:
    """Of an error, an episode's name, a text: what would change its title or its colours is spelled."""
    evil = "\x1b]0;gone\x07\x1b[2J"
    with RunStore.create(tmp_path, "run", "model: {path: x}\n") as store:
        failed = Outcome("failed", f"ValueError: {evil}")
        for number in range(6):
            store.add_episode(replace(episode_of(number), id=f"{evil}{number}", outcome=failed), step=0)
    said = text_of(tmp_path / "run")
    assert "\\x1b]0;gone" in said and "\x1b" not in said and "\x07" not in said


points = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(allow_nan=True, allow_infinity=True)), max_size=30)


@given(points=points, width=st.integers(1, 40), height=st.integers(1, 8))
def test_a_chart_has_its_size_whatever_is_drawn(points: list[tuple[float, float]], width: int, height: int) -> None:
    """Every row is as wide as the others, of braille alone."""
    rows = chart(points, width=width, height=height)
    assert len(rows) == height and {len(row) for row in rows} == {width}
    assert all(0x2800 <= ord(cell) <= 0x28FF for row in rows for cell in row)


def test_a_line_that_rises_goes_from_the_bottom_to_the_top() -> None:
    assert chart([(0, 0), (1, 1)], width=2, height=1) == ["⡠⠊"]
    assert chart([(0, 1), (1, 1)], width=1, height=1) == ["⣀"]
