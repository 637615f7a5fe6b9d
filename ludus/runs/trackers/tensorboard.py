"""A run in TensorBoard: scalars a step, the configuration and the summary as texts.

Knows: TensorBoard's event files.  Knows not: torch, episodes: TensorBoard has no traces.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.runs.metrics import Metrics
from ludus.runs.trackers.base import TrackedEpisode, TrackedRun, Tracker, numbers_of


class TensorboardTracker(Tracker):
    takes_traces = False

    def __init__(self, run: TrackedRun, run_id: str | None) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        asked = run.settings.tensorboard.folder
        folder = run.folder / "tensorboard" if asked is None else Path(asked).expanduser() / run.name
        self.run_id = str(folder) if run_id is None else run_id
        # Each process has a file of its own there, and TensorBoard shows them as one run.
        self._writer = EventFileWriter(self.run_id)
        if run_id is None and run.config:
            self._text("config", json.dumps(run.config, indent=2, default=str))

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        self._scalars(step, metrics)
        self._writer.flush()

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        raise AssertionError("it has no traces")

    def end(self, summary: Mapping[str, Any], report: Callable[[], str]) -> None:
        self._text("summary", json.dumps(summary, indent=2, default=str))
        self._scalars(int(summary.get("steps", 0)), {f"summary/{name}": n for name, n in numbers_of(summary).items()})
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _scalars(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(Summary(value=[Summary.Value(tag=name, simple_value=n) for name, n in values.items()]), step)

    def _text(self, tag: str, text: str) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        lines = "".join(f"    {line}\n" for line in text.splitlines())  # four spaces: as it is, in Markdown
        self._add(text_pb(tag, lines), 0)

    def _add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
