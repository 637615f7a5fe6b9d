"""Sends a run to trackio: metrics, configuration, traces of episodes, summary and report.

Knows: trackio's runs and traces.  Knows not: agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ludus.runs.metrics import Metrics
from ludus.runs.trackers.base import Report, TrackedEpisode, TrackedRun, Tracker, numbers_of
from ludus.runs.trackers.tree import TreeSpan, episode_tree, labels_of

_KINDS = {"generate": "generation", "tool": "tool"}


class TrackioTracker(Tracker):
    most_per_step = None

    def __init__(self, run: TrackedRun, run_id: str | None) -> None:
        import trackio

        self.run_id = run_id or run.name
        self._name = run.name
        self._trace, self._markdown, self._html = trackio.Trace, trackio.Markdown, trackio.Html
        self._run = trackio.init(
            project=run.settings.project,
            name=self.run_id,
            space_id=run.settings.trackio.space,
            config={name: value for name, value in run.config.items() if not name.startswith("_")},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        for one in episodes:
            top, *below = episode_tree(one.episode)
            messages = list((top.inputs or {}).get("messages", []))
            if top.outputs["reply"] is not None:
                messages.append({"role": "assistant", "content": top.outputs["reply"]})
            spans = [_span(idx, span) for idx, span in enumerate([top, *below])]
            metadata = {
                **labels_of(one.episode, self._name, one.step),
                "session_id": one.episode.group_id,
                "status": "ok" if top.error is None else "error",
                "duration_ms": int((top.finished_at - top.started_at) * 1e3),
            }
            self._run.log({"episode": self._trace(messages=messages, metadata=metadata, spans=spans)}, step=one.step)

    def end(self, summary: Mapping[str, Any], report: Report) -> None:
        shown: dict[str, Any] = {f"summary/{name}": value for name, value in numbers_of(summary).items()}
        if text := report.text():
            shown["report"] = self._markdown(text)
        if page := report.page():
            shown["report_page"] = self._html(page, inject=False)
        self._run.log(shown, step=int(summary.get("steps", 0)))

    def close(self) -> None:
        self._run.finish()


def _span(idx: int, span: TreeSpan) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": str(idx),
        "parent_id": "0" if idx else None,
        "name": span.name,
        "kind": _KINDS.get(span.kind, "span"),
        "start_time": span.started_at,
        "end_time": span.finished_at,
        "duration_ms": int((span.finished_at - span.started_at) * 1e3),
        "status": "ok" if span.error is None else "error",
        "error": span.error,
        "input": span.inputs,
        "output": span.outputs,
    }
    if span.usage is not None:
        values["usage"] = {"input_tokens": span.usage[0], "output_tokens": span.usage[1]}
    return {name: value for name, value in values.items() if value is not None}
