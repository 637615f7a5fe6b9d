"""Sends a run to MLflow: metrics, configuration, episodes as traces, summary and report.

Knows: MLflow's runs, traces, spans and assessments.  Knows not: how failures of the server are handled.
Invariants: an episode is one trace, whose id is derived from the run's and the episode's; MLflow's global state is not
touched.

    tags of a trace        run, step, sample, group, episode, split, outcome, reward
    session of a trace     the group, so that its members are shown together
    assessments            the reward and the agent's metrics
    run of the experiment  the run of training
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.runs.metrics import Metrics
from ludus.runs.trackers.base import Report, TrackedEpisode, TrackedRun, Tracker, numbers_of
from ludus.runs.trackers.tree import MAX_LABEL_CHARS, UNDECODED, TreeSpan, cut, episode_tree, labels_of
from ludus.settings import leaves
from ludus.types import Episode

_SPAN_TYPES = {"run": "AGENT", "generate": "CHAT_MODEL", "tool": "TOOL", "reward": "EVALUATOR"}
_MAX_PREVIEW_CHARS = 1000  # as MLflow's own
_MOST_VALUES = 100
"""Limit on the values in one request: MLflow's limit for parameters, which is lower than that for metrics."""
_MAX_PARAM_CHARS = 500
_NOT_ALLOWED = re.compile(r"[^/\w.\- :]")
# Report an unreachable server after seconds; MLflow's own defaults wait for many minutes.
_HTTP = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "GIT_PYTHON_REFRESH": "quiet"}


class MlflowTracker(Tracker):
    most_per_step = None

    def __init__(self, run: TrackedRun, run_id: str | None) -> None:
        os.environ.update(_HTTP | _QUIET)
        from mlflow import MlflowClient
        from mlflow.tracing.client import TracingClient

        uri, project = run.settings.mlflow.tracking_uri, run.settings.project
        self._name = run.name
        self._client = MlflowClient(uri)
        experiment = self._client.get_experiment_by_name(project)
        self._experiment_id = (
            self._client.create_experiment(project, artifact_location=_place_of_files(uri))
            if experiment is None
            else experiment.experiment_id
        )
        self._traces = TracingClient(uri)
        if run_id is None:
            tags = {"mlflow.source.name": "ludus"}
            self.run_id = self._client.create_run(self._experiment_id, run_name=run.name, tags=tags).info.run_id
            self._add_params(run.config)
        else:
            self.run_id = run_id
            self._client.update_run(run_id, status="RUNNING")

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1e3)
        values = [Metric(_allowed(name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(values), _MOST_VALUES):
            self._client.log_batch(self.run_id, metrics=values[start : start + _MOST_VALUES])

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        spans: list[Any] = []
        for one in episodes:
            episode = one.episode
            known_as = f"{self.run_id}/{cut(episode.id)}/{episode.started_at}"
            trace_id = f"tr-{uuid.uuid5(uuid.NAMESPACE_URL, known_as).hex}"
            labels = labels_of(episode, self._name, one.step)
            top, *below = episode_tree(episode)
            self._traces.start_trace(_info(trace_id, self._experiment_id, self.run_id, episode, [top, *below], labels))
            top_id = _span_id(trace_id, 0)
            spans.append(_span(trace_id, top_id, None, top, labels))
            spans += (_span(trace_id, _span_id(trace_id, idx), top_id, one, {}) for idx, one in enumerate(below, 1))
        if spans:
            self._traces.log_spans(self._experiment_id, spans)

    def end(self, summary: Mapping[str, Any], report: Report) -> None:
        numbers = {f"summary/{name}": value for name, value in numbers_of(summary).items()}
        self.add_metrics(int(summary.get("steps", 0)), numbers)
        self._client.log_dict(self.run_id, dict(summary), "summary.json")
        page = report.page()
        if page:
            self._client.log_text(self.run_id, page, "report.html")

    def close(self) -> None:
        self._client.set_terminated(self.run_id)

    def _add_params(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        values = [Param(_allowed(".".join(path)), str(value)[:_MAX_PARAM_CHARS]) for path, value in leaves(config)]
        for start in range(0, len(values), _MOST_VALUES):
            self._client.log_batch(self.run_id, params=values[start : start + _MOST_VALUES])


def _allowed(name: str) -> str:
    """The name with the characters that MLflow allows in names, which are parts of paths there."""
    parts = _NOT_ALLOWED.sub("_", cut(name)).split("/")
    return "/".join(part for part in parts if part.strip("."))[:MAX_LABEL_CHARS] or "_"


def _place_of_files(uri: str) -> str | None:
    """Where artifacts are stored: beside a SQLite database, rather than in the working directory. None: MLflow's
    default."""
    kind, _, path = uri.partition(":///")
    return (Path(path).absolute().parent / "mlartifacts").as_uri() if kind == "sqlite" and path else None


def _info(
    trace_id: str, experiment_id: str, run_id: str, episode: Episode, tree: Sequence[TreeSpan], labels: dict[str, str]
) -> Any:
    from mlflow.entities import AssessmentSource, Feedback, TraceInfo, TraceLocation, TraceState

    source = AssessmentSource(source_type="CODE", source_id="ludus")
    # A metric with a slash (`time/…`) is a measurement, not an assessment; it is in the span of the run.
    judged = {name: value for name, value in episode.metrics.items() if "/" not in name}
    given = {"reward": episode.reward, **judged}
    run = tree[0]
    asked = (run.inputs or {}).get("messages") or [{}]  # its last is what the episode began with
    return TraceInfo(
        trace_id=trace_id,
        client_request_id=cut(episode.id),
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=int(run.started_at * 1e3),
        execution_duration=int((run.finished_at - run.started_at) * 1e3),
        state=TraceState.OK if run.error is None else TraceState.ERROR,
        request_preview=str(asked[-1].get("content") or "")[:_MAX_PREVIEW_CHARS],
        response_preview=(run.outputs["reply"] or "")[:_MAX_PREVIEW_CHARS],
        trace_metadata={
            "mlflow.trace_schema.version": "3",
            "mlflow.trace.session": f"{labels['run']}/{labels['group']}",
            "mlflow.sourceRun": run_id,
            "mlflow.trace.tokenUsage": json.dumps(_usage(*(span.usage for span in tree))),
        },
        tags={"mlflow.traceName": f"episode {labels['episode']}"[:MAX_LABEL_CHARS], **labels},
        assessments=[
            Feedback(name=name, value=float(value), source=source, trace_id=trace_id)
            for name, value in given.items()
            if value is not None and math.isfinite(value)  # a server takes no other numbers here
        ],
    )


def _span(trace_id: str, span_id: str, parent_id: str | None, span: TreeSpan, labels: dict[str, str]) -> Any:
    from mlflow.entities import Span

    own = {"turn_id": span.turn_id, **span.metrics, **span.attributes}
    attributes: dict[str, Any] = {
        "mlflow.traceRequestId": trace_id,
        "mlflow.spanType": _SPAN_TYPES.get(span.kind, "TASK"),
        "mlflow.spanInputs": span.inputs,
        "mlflow.spanOutputs": span.outputs,
        **labels,
        **{f"ludus.{name}": value for name, value in own.items()},
    }
    if span.usage is not None:
        attributes["mlflow.message.format"] = "openai"
        attributes["mlflow.chat.tokenUsage"] = _usage(span.usage)
        attributes["mlflow.chat.tools"] = span.inputs.get("tools")
    ended_at = _ns(span.finished_at)
    events: list[dict[str, Any]] = [
        {"name": UNDECODED, "time_unix_nano": ended_at, "attributes": {"text": text}} for text in span.undecoded
    ]
    if span.error is not None:
        error = {"exception.message": span.error, "exception.type": span.error_type}
        events.append({"name": "exception", "time_unix_nano": ended_at, "attributes": error})
    return Span.from_dict(
        {
            "trace_id": trace_id,
            "span_id": span_id,
            "parent_span_id": parent_id,
            "name": span.name,
            "start_time_unix_nano": _ns(span.started_at),
            "end_time_unix_nano": ended_at,
            "events": events,
            "status": {
                "code": "STATUS_CODE_OK" if span.error is None else "STATUS_CODE_ERROR",
                "message": span.error or "",
            },
            "attributes": {
                name: json.dumps(value, default=repr) for name, value in attributes.items() if value is not None
            },
        }
    )


def _span_id(trace_id: str, idx: int) -> str:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{trace_id}/{idx}").hex[:16]


def _usage(*used: tuple[int, int] | None) -> dict[str, int]:
    prompts, answers = (sum(pair[side] for pair in used if pair is not None) for side in (0, 1))
    return {"input_tokens": prompts, "output_tokens": answers, "total_tokens": prompts + answers}


def _ns(at: float) -> int:
    return int(at * 1e9)
