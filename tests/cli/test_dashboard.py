from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ludus.cli.dashboard import chart, render
from ludus.runs.store import RunStore
from ludus.runs.watch.folder import RunsFolder
from tests.runs.conftest import fill_run


def text_of(folder: Path, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    with closing(RunsFolder(folder)) as runs:
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
