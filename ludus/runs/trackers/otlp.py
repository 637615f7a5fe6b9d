"""Sends a run to OpenTelemetry: episodes as traces by its conventions for generative AI, metrics as gauges,
over OTLP and HTTP.

Knows: the SDK's records and exporters, the conventions' names.  Knows not: who plays.
Invariants: ids are derived from the run's and the episode's, so that data sent twice is stored once; OpenTelemetry's
global state is not touched.
Source: https://opentelemetry.io/docs/specs/semconv/gen-ai/ (spans, agent spans, events).
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.runs.metrics import Metrics
from ludus.runs.trackers.base import Report, TrackedEpisode, TrackedRun, Tracker, numbers_of
from ludus.runs.trackers.tree import UNDECODED, TreeSpan, cut, episode_tree, labels_of

_TIMEOUT_S = 10.0
_OPERATIONS = {"run": "invoke_agent", "generate": "chat", "tool": "execute_tool"}
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool", "developer": "system"}


class OtlpTracker(Tracker):
    most_per_step = None

    def __init__(self, run: TrackedRun, run_id: str | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self.run_id = run_id or uuid.uuid4().hex
        self._name = run.name
        self._last = _LastWords()
        logging.getLogger("opentelemetry.exporter.otlp").addHandler(self._last)
        at, headers = run.settings.otlp.endpoint.rstrip("/"), dict(run.settings.otlp.headers)
        self._spans = OTLPSpanExporter(f"{at}/v1/traces", headers=headers, timeout=_TIMEOUT_S)
        self._metrics = OTLPMetricExporter(f"{at}/v1/metrics", headers=headers, timeout=_TIMEOUT_S)
        model = run.config.get("model", {}).get("path")
        self._model = str(model or "")
        self._resource = Resource(
            {"service.name": run.settings.project, "service.instance.id": self.run_id, "ludus.run": run.name}
        )
        self._scope = InstrumentationScope("ludus")
        self._export_metrics({"step": 0.0} if run_id is None else {})  # fails at once if there is no collector

    def add_metrics(self, step: int, metrics: Metrics) -> None:
        self._export_metrics({"step": float(step), **metrics})

    def add_episodes(self, episodes: Sequence[TrackedEpisode]) -> None:
        self._export_spans([span for one in episodes for span in self._spans_of(one)])

    def end(self, summary: Mapping[str, Any], report: Report) -> None:
        self._export_metrics({f"summary/{name}": value for name, value in numbers_of(summary).items()})
        now, trace_id = time.time(), uuid.uuid5(uuid.NAMESPACE_URL, self.run_id)
        ended = TreeSpan("end", "run ended", now, now, attributes={"summary": json.dumps(summary, default=str)})
        self._export_spans([self._span(trace_id, 0, ended, {}, report=cut(report.text()))])

    def close(self) -> None:
        logging.getLogger("opentelemetry.exporter.otlp").removeHandler(self._last)
        self._spans.shutdown()  # type: ignore[no-untyped-call]
        self._metrics.shutdown()

    def _export_metrics(self, values: Metrics) -> None:
        from opentelemetry.sdk.metrics import export

        now = time.time_ns()
        gauges = [
            export.Metric(
                name=f"ludus.{name.replace('/', '.')}",
                description="",
                unit="",
                data=export.Gauge([export.NumberDataPoint({}, 0, now, value)]),
            )
            for name, value in values.items()
        ]
        if gauges:
            scope = export.ScopeMetrics(self._scope, gauges, "")
            data = export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])
            self._check(self._metrics.export(data), export.MetricExportResult.SUCCESS, "metrics")

    def _export_spans(self, spans: Sequence[Any]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if spans:
            self._check(self._spans.export(spans), SpanExportResult.SUCCESS, "spans")

    def _check(self, got: Any, wanted: Any, what: str) -> None:
        if got is not wanted:
            raise ConnectionError(f"the collector did not take {what}: {self._last.words or 'it did not say why'}")

    def _spans_of(self, one: TrackedEpisode) -> list[Any]:
        episode = one.episode
        trace_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{self.run_id}/{cut(episode.id)}/{episode.started_at}")
        labels = {f"ludus.{name}": value for name, value in labels_of(episode, self._name, one.step).items()}
        labels["gen_ai.conversation.id"] = labels["ludus.episode"]
        return [self._span(trace_id, idx, span, labels) for idx, span in enumerate(episode_tree(episode))]

    def _span(self, trace: uuid.UUID, idx: int, span: TreeSpan, labels: Mapping[str, str], *, report: str = "") -> Any:
        """report: Markdown that becomes an event of the span. Empty: no event."""
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        def context(number: int) -> SpanContext:
            own = uuid.uuid5(trace, str(number)).int >> 64
            return SpanContext(trace.int, own, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        ended_at = _ns(span.finished_at)
        events = [Event(UNDECODED, {"text": text}, ended_at) for text in span.undecoded]
        events += [Event("ludus.report", {"text": report}, ended_at)] if report else []
        if span.kind == "reward" or (span.kind == "run" and isinstance(span.outputs, Mapping)):
            events += [Event("gen_ai.evaluation.result", given, ended_at) for given in _evaluations(span)]
        operation = _OPERATIONS.get(span.kind)
        subject = {"run": self._name, "generate": self._model}.get(span.kind, span.name)
        attributes = {**labels, **self._attributes(span)}
        return ReadableSpan(
            name=f"{operation} {subject}" if operation else span.name,
            context=context(idx),
            parent=context(0) if idx else None,
            resource=self._resource,
            attributes={name: value for name, value in attributes.items() if value is not None},
            events=events,
            kind=SpanKind.CLIENT if span.kind == "generate" else SpanKind.INTERNAL,
            instrumentation_scope=self._scope,
            status=Status(StatusCode.OK if span.error is None else StatusCode.ERROR, span.error),
            start_time=_ns(span.started_at),
            end_time=ended_at,
        )

    def _attributes(self, span: TreeSpan) -> dict[str, Any]:
        inputs = span.inputs if isinstance(span.inputs, Mapping) else {}
        found: dict[str, Any] = {
            "gen_ai.operation.name": _OPERATIONS.get(span.kind),
            "error.type": None if span.error is None else span.error_type,
            **{f"ludus.{name}": _plain(value) for name, value in span.attributes.items()},
        }
        if span.kind == "run":
            found |= {"gen_ai.provider.name": "ludus", "gen_ai.agent.name": self._name}
            found["gen_ai.input.messages"] = _messages(inputs.get("messages", []))
        elif span.kind == "generate":
            answers = [{**each["message"], "finish_reason": each["finish_reason"]} for each in span.outputs["choices"]]
            used = span.usage or (0, 0)
            found |= {
                "gen_ai.provider.name": "ludus",
                "gen_ai.request.model": self._model,
                "gen_ai.request.temperature": span.attributes.get("temperature"),
                "gen_ai.request.seed": span.attributes.get("seed"),
                "gen_ai.response.finish_reasons": [each["finish_reason"] or "" for each in answers],
                "gen_ai.usage.input_tokens": used[0],
                "gen_ai.usage.output_tokens": used[1],
                "gen_ai.input.messages": _messages(inputs.get("messages", [])),
                "gen_ai.output.messages": _messages(answers),
                "gen_ai.tool.definitions": json.dumps(inputs["tools"], default=repr) if "tools" in inputs else None,
            }
        elif span.kind == "tool":
            found |= {
                "gen_ai.tool.name": span.name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.arguments": json.dumps(span.inputs, default=repr),
                "gen_ai.tool.call.result": json.dumps(span.outputs, default=repr),
            }
        else:
            found |= {"ludus.inputs": _plain(span.inputs), "ludus.outputs": _plain(span.outputs)}
        return found


class _LastWords(logging.Handler):
    """Keeps the last log message: the SDK's exporters only log why they failed, and return no reason."""

    words = ""

    def emit(self, record: logging.LogRecord) -> None:
        if "max retries or shutdown" not in record.getMessage():  # logged after the reason, and less useful
            self.words = record.getMessage()


def _evaluations(span: TreeSpan) -> list[dict[str, Any]]:
    """Evaluation results, in the conventions' sense: one for the run's reward, or one for a reward function's."""
    outputs = span.outputs
    score = outputs.get("reward") if isinstance(outputs, Mapping) else outputs
    if not isinstance(score, (int, float)):
        return []
    name = "reward" if span.kind == "run" else span.name
    return [{"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": float(score)}]


def _messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages in OpenAI's format, converted to that of the conventions."""
    return json.dumps([_message(message) for message in messages], default=repr, ensure_ascii=False)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role, content = str(message.get("role", "user")), message.get("content")
    parts: list[dict[str, Any]] = []
    if role == "tool":
        parts.append({"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content})
    if message.get("reasoning_content"):
        parts.append({"type": "reasoning", "content": message["reasoning_content"]})
    if role != "tool" and content:
        parts.append({"type": "text", "content": content})
    for call in message.get("tool_calls") or []:
        function = call.get("function", {})
        parts.append({"type": "tool_call", "id": call.get("id"), **{k: function.get(k) for k in ("name", "arguments")}})
    ended = {"finish_reason": message["finish_reason"]} if "finish_reason" in message else {}
    return {"role": _ROLES.get(role, role), "parts": parts, **ended}


def _plain(value: Any) -> Any:
    """The value in a type that an attribute can hold."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(value, default=repr)


def _ns(at: float) -> int:
    return int(at * 1e9)
