"""Episodes as traces in MLflow: what runs in the process that writes them.

Knows: MLflow's traces, spans and assessments.  Knows not: who plays, queues, what a dead server means to a run.
Invariants: an episode is one trace, whose id derives from the run's and the episode's; no global state of MLflow is
touched, so that what an agent does with it in its own process stays as it was.

    tags of a trace        run, step, sample, group, episode, split, outcome, reward
    session of a trace     the group, so that its members stand together
    assessments            the reward and the agent's metrics
    run of the experiment  the run of training
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ludus.runs.exporters.base import FinishedEpisode
from ludus.runs.exporters.tree import UNDECODED, TreeSpan, episode_tree
from ludus.types import Episode

_NICEST = 19
"""The least that the system can give: traces are written in the time that sampling and training leave."""
_SPAN_TYPES = {"run": "AGENT", "generate": "CHAT_MODEL", "tool": "TOOL", "reward": "EVALUATOR"}
_MAX_TAG_CHARS = 250  # MLflow refuses tags above 8000 and shows less than this
_MAX_PREVIEW_CHARS = 1000  # as MLflow's own
# A server that is gone is reported after seconds, not after MLflow's own many minutes.
_HTTP = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "GIT_PYTHON_REFRESH": "quiet"}

Write = Callable[[Sequence[FinishedEpisode], bool], int]
"""Writes episodes; True: they are the last of the run. Returns how many there were."""


def open_writer(tracking_uri: str, project_name: str, run_name: str) -> Write:
    """Makes the function that writes; called once, in a process of its own."""
    os.nice(_NICEST)
    os.environ.update(_HTTP | _QUIET)
    from mlflow import MlflowClient
    from mlflow.tracing.client import TracingClient

    client = MlflowClient(tracking_uri)
    experiment = client.get_experiment_by_name(project_name)
    experiment_id = client.create_experiment(project_name) if experiment is None else experiment.experiment_id
    run = client.create_run(experiment_id, run_name=run_name, tags={"mlflow.source.name": "ludus"})
    traces = TracingClient(tracking_uri)
    _run_in_idle_time()  # not before: on a machine where all is busy the imports would take minutes

    def write(episodes: Sequence[FinishedEpisode], is_last: bool) -> int:
        spans: list[Any] = []
        for finished in episodes:
            episode = finished.episode
            known_as = f"{run.info.run_id}/{episode.id}/{episode.started_at}"
            trace_id = f"tr-{uuid.uuid5(uuid.NAMESPACE_URL, known_as).hex}"
            labels = _labels(episode, run_name, finished.step)
            top, *below = episode_tree(episode)
            traces.start_trace(_info(trace_id, experiment_id, run.info.run_id, episode, [top, *below], labels))
            top_id = _span_id(trace_id, 0)
            spans.append(_span(trace_id, top_id, None, top, labels))
            spans += (_span(trace_id, _span_id(trace_id, idx), top_id, one, {}) for idx, one in enumerate(below, 1))
        if spans:
            traces.log_spans(experiment_id, spans)
        if is_last:
            client.set_terminated(run.info.run_id)
        return len(episodes)

    return write


def _run_in_idle_time() -> None:
    """From now on this process runs on cores that nobody else wants, where the system has such a thing."""
    if sys.platform == "linux":
        # Niceness counts within a session alone where the kernel groups sessions, and this process leads its own; and
        # the nicest process gets its turns too, in which a whole product of matrices waits for the core it took.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(_NICEST))
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _labels(episode: Episode, run_name: str, step: int | None) -> dict[str, str]:
    """What links a trace to its run, its step, its sample and its group."""
    labels = {
        "run": run_name,
        "sample": episode.task_id,
        "group": episode.group_id,
        "episode": episode.id,
        "split": "eval" if episode.is_eval else "train",
        "outcome": episode.outcome.kind,
    }
    if step is not None:
        labels["step"] = str(step)
    if episode.reward is not None:
        labels["reward"] = f"{episode.reward:g}"
    return {name: value[:_MAX_TAG_CHARS] for name, value in labels.items()}


def _info(
    trace_id: str, experiment_id: str, run_id: str, episode: Episode, tree: Sequence[TreeSpan], labels: dict[str, str]
) -> Any:
    from mlflow.entities import AssessmentSource, Feedback, TraceInfo, TraceLocation, TraceState

    source = AssessmentSource(source_type="CODE", source_id="ludus")
    # A name with a slash is a measurement of the run (`time/…`), no judgement; it stands in the run's span.
    judged = {name: value for name, value in episode.metrics.items() if "/" not in name}
    given = {"reward": episode.reward, **judged}
    run = tree[0]
    asked = (run.inputs or {}).get("messages") or [{}]  # its last is what the episode began with
    return TraceInfo(
        trace_id=trace_id,
        client_request_id=episode.id,
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
        tags={"mlflow.traceName": f"episode {episode.id}"[:_MAX_TAG_CHARS], **labels},
        assessments=[
            Feedback(name=name, value=float(value), source=source, trace_id=trace_id)
            for name, value in given.items()
            if value is not None
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
        error = {"exception.message": span.error, "exception.type": span.error.partition(":")[0][:_MAX_TAG_CHARS]}
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
