"""Episodes on their way out: what a viewer does to them, and that the run does not notice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ludus.runs.exporters.background import MAX_WAITING, BackgroundExporter
from ludus.runs.exporters.base import FinishedEpisode
from tests.runs.conftest import episode_of


def writer(path: str, act: Callable[[int], Any] = lambda num_calls: None) -> Callable[..., None]:
    """Writes the ids of episodes to a file, a line a call. act: does something first, by the number of the call."""
    calls = [0]

    def write(episodes: Sequence[FinishedEpisode], is_last: bool) -> None:
        calls[0] += 1
        act(calls[0])
        with Path(path).open("a") as file:
            file.write(" ".join(finished.episode.id for finished in episodes) + (" last" if is_last else "") + "\n")

    return write


def exporter(path: Path, act: Callable[[int], Any] = lambda num_calls: None, **options: Any) -> BackgroundExporter:
    options = {"patience_s": 0.5, "first_pause_s": 0.01, **options}
    return BackgroundExporter(lambda: writer(str(path), act), name="viewer", **options)


def ids(path: Path) -> list[str]:
    return [word for word in path.read_text().split() if word != "last"]


def finished(idx: int, step: int | None = 0, **fields: Any) -> FinishedEpisode:
    return replace(FinishedEpisode.of(episode_of(idx, num_turns=1), step), **fields)


def test_everything_has_left_when_it_is_closed(tmp_path: Path) -> None:
    """In order, each once, and the viewer is given which are the last."""
    with exporter(tmp_path / "out", patience_s=30) as viewer:
        for idx in range(100):
            viewer.add(finished(idx))
    assert ids(tmp_path / "out") == [f"ep-{idx}" for idx in range(100)]
    assert (tmp_path / "out").read_text().count("last") == 1


def test_a_viewer_that_fails_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What it failed with is lost and counted, what comes later is not; each change is reported once."""

    def act(num_calls: int) -> None:
        if num_calls == 2:
            raise ConnectionError("nobody there")

    with exporter(tmp_path / "out", act, patience_s=30) as viewer:
        for idx in range(2):
            viewer.add(finished(idx))
            viewer.flush()
    assert ids(tmp_path / "out") == ["ep-1"]
    assert [record.getMessage() for record in caplog.records] == [
        "viewer: traces cannot be written, and the run goes on without them: ConnectionError: nobody there",
        "viewer: traces are written again",
        "viewer: 1 of 2 traces were not written; the episodes are in the run's folder",
    ]


def test_a_viewer_whose_process_dies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another process takes its place."""

    def act(num_calls: int) -> None:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(3)

    with exporter(tmp_path / "out", act, patience_s=30) as viewer:
        while not viewer.has_failed:
            time.sleep(0.002)
        viewer.add(finished(1))
        viewer.flush()
    assert "its process ended (exit status 3)" in caplog.text
    assert ids(tmp_path / "out") == ["ep-1"]


def test_a_viewer_that_hangs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It holds up neither who adds nor, for longer than its patience, the end of the run."""
    viewer = exporter(tmp_path / "out", lambda num_calls: time.sleep(60))
    began_at = time.monotonic()
    with viewer:
        for idx in range(3):
            viewer.add(finished(idx))
    assert time.monotonic() - began_at < 10
    assert "viewer: 3 of 3 traces were not written" in caplog.text


def test_a_viewer_that_does_not_keep_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So many episodes wait and no more; the rest is counted as lost."""
    one = finished(1)
    viewer = exporter(tmp_path / "out", lambda num_calls: time.sleep(60))
    with viewer:
        for _ in range(MAX_WAITING + 50):
            viewer.add(one)
        assert viewer.num_left <= MAX_WAITING
    assert f"viewer: {MAX_WAITING + 50} of {MAX_WAITING + 50} traces were not written" in caplog.text


def test_a_part_of_each_step(tmp_path: Path) -> None:
    """The first of each step that end, those of evaluations beside them."""
    with exporter(tmp_path / "out", patience_s=30, max_samples_per_step=2) as viewer:
        for step in (1, 2):
            for idx in range(4):
                viewer.add(finished(10 * step + idx, step))
        viewer.add(finished(99, 2, is_eval=True))
    assert ids(tmp_path / "out") == ["ep-10", "ep-11", "ep-20", "ep-21", "ep-99"]


def test_what_comes_after_the_end(tmp_path: Path) -> None:
    """Nothing is written any more, and nobody is told off."""
    viewer = exporter(tmp_path / "out", patience_s=30)
    with viewer:
        viewer.add(finished(1))
    viewer.add(finished(2))
    viewer.close()
    assert ids(tmp_path / "out") == ["ep-1"]
