"""Sends a run to TensorBoard: metrics as scalars, episodes, summary and report as text, configuration as
hyperparameters.

Knows: TensorBoard's event files and its plugins for text and hyperparameters.  Knows not: torch, spans.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.runs.metrics import Metrics
from ludus.runs.trackers.base import Report, TrackedEpisode, TrackedRun, Tracker, numbers_of
from ludus.runs.trackers.conversation import conversation
from ludus.runs.trackers.tree import cut, labels_of
from ludus.settings import leaves


class TensorboardTracker(Tracker):
    most_per_step = 8

    def __init__(self, run: TrackedRun, run_id: str | None) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        asked = run.settings.tensorboard.folder
        folder = run.folder / "tensorboard" if asked is None else Path(asked).expanduser() / run.name
        self.run_id = str(folder) if run_id is None else run_id
        self._name = run.name
        # Each process writes its own file in this folder, and TensorBoard shows all of them as one run.
        self._writer = EventFileWriter(self.run_id)
        if run_id is None and run.config:
            self._text("config", _as_it_is(json.dumps(run.config, indent=2, default=str)))
            values = {".".join(path): _hyperparameter(value) for path, value in leaves(run.config)}
            self._add(hparams_pb(values, trial_id=run.name))
            self._writer.flush()

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        self._scalars(step, metrics)
        self._writer.flush()

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        for one in episodes:
            labels = labels_of(one.episode, self._name, one.step)
            self._text(f"episodes/{labels['split']}", _shown(one, labels), one.step or 0)
        self._writer.flush()

    def end(self, summary: Mapping[str, Any], report: Report) -> None:
        steps = int(summary.get("steps", 0))
        self._text("summary", _as_it_is(json.dumps(summary, indent=2, default=str)))
        self._scalars(steps, {f"summary/{name}": n for name, n in numbers_of(summary).items()})
        text = report.text()
        if text:
            self._text("report", text, steps)
        self._add(_session_end())
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _scalars(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(Summary(value=[Summary.Value(tag=name, simple_value=n) for name, n in values.items()]), step)

    def _text(self, tag: str, markdown: str, step: int = 0) -> None:
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._add(text_pb(tag, markdown), step)

    def _add(self, summary: Any, step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))


def _shown(one: TrackedEpisode, labels: Mapping[str, str]) -> str:
    """An episode in Markdown."""
    head = " · ".join(f"{name} `{value}`" for name, value in labels.items() if name not in ("run", "split"))
    reason = [_as_it_is(cut(one.episode.outcome.reason))] if one.episode.outcome.reason else []
    said = [f"**{who}**\n\n{_as_it_is(text)}" for who, text in conversation(one.episode)]
    return "\n\n".join([head, *reason, *said])


def _as_it_is(text: str) -> str:
    """The text as a code block in Markdown: each line indented by four spaces."""
    return "".join(f"    {line}\n" for line in text.splitlines())


def _hyperparameter(value: Any) -> bool | float | str:
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value, default=str)


def _session_end() -> Any:
    """The summary by which the plugin for hyperparameters knows that the run has ended."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    ended = plugin_data_pb2.SessionEndInfo(status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time())
    data = plugin_data_pb2.HParamsPluginData(session_end_info=ended)
    value = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(data),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[value])
